//! Sealed documents: JSON objects that carry their own digest, so that any change to their bytes shows.
//!
//! A document is one JSON object. Its last member is `"sha256"`, the digest of every byte before that member's comma.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::error::{Damage, RepositoryResult};
use super::store::{Key, Store, Version};

const SEAL_START: &[u8] = b",\"sha256\":\"";
const SEAL_END: &[u8] = b"\"}\n";
const SEAL_LENGTH: usize = SEAL_START.len() + 64 + SEAL_END.len();

/// A kind of document: what its `"kind"` says and how large it can rightly be.
pub trait Document: Serialize + DeserializeOwned {
    /// The value of the member `"kind"`.
    const KIND: &'static str;
    /// No document of this kind is larger, in bytes.
    const LIMIT: u64 = 1 << 20;
}

/// What is wrong with a document's bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentFault {
    /// It does not end with a digest.
    #[error("it does not end with its sha256: it was cut or is something else")]
    Unsealed,
    /// The digest is not that of the content.
    #[error("its content has sha256 {found}, but it says {stated}")]
    Digest {
        /// What the content has.
        found: String,
        /// What the document states.
        stated: String,
    },
    /// Right bytes, but of another kind, or of a version that this agent does not know.
    #[error("it is no {expected} of a version this agent can read: {reason}")]
    Content {
        /// The kind that was looked for.
        expected: &'static str,
        /// What the parser said.
        reason: String,
    },
}

#[derive(Serialize, serde::Deserialize)]
struct Tagged<T> {
    kind: String,
    format: u32,
    #[serde(flatten)]
    body: T,
}

/// The bytes of a document.
pub(super) fn seal<T: Document>(body: &T) -> Vec<u8> {
    let tagged = Tagged { kind: T::KIND.to_owned(), format: 1, body };
    // Our documents are plain structures with text keys: writing them to memory cannot fail.
    let mut bytes = serde_json::to_vec(&tagged).unwrap_or_default();
    bytes.pop();
    let digest = hex::encode(Sha256::digest(&bytes));
    bytes.extend_from_slice(SEAL_START);
    bytes.extend_from_slice(digest.as_bytes());
    bytes.extend_from_slice(SEAL_END);
    bytes
}

/// Checks and reads a document's bytes.
pub(super) fn unseal<T: Document>(bytes: &[u8]) -> Result<T, DocumentFault> {
    let content_length = bytes.len().checked_sub(SEAL_LENGTH).ok_or(DocumentFault::Unsealed)?;
    let (content, sealing) = bytes.split_at(content_length);
    let stated = sealing
        .strip_prefix(SEAL_START)
        .and_then(|rest| rest.strip_suffix(SEAL_END))
        .and_then(|digest| std::str::from_utf8(digest).ok())
        .ok_or(DocumentFault::Unsealed)?;
    let found = hex::encode(Sha256::digest(content));
    if found != stated {
        return Err(DocumentFault::Digest { found, stated: stated.to_owned() });
    }
    let wrong = |reason: String| DocumentFault::Content { expected: T::KIND, reason };
    let tagged: Tagged<T> = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    if tagged.kind != T::KIND || tagged.format != 1 {
        return Err(wrong(format!("it is a {:?} of format {}", tagged.kind, tagged.format)));
    }
    Ok(tagged.body)
}

/// Reads and checks the document at `key`.
pub(super) fn read<T: Document>(store: &dyn Store, key: &Key) -> RepositoryResult<(T, Version)> {
    let object = store.get(key, T::LIMIT)?;
    let body = unseal(&object.body).map_err(|fault| Damage::of(key, fault.to_string()))?;
    Ok((body, object.version))
}

/// The document's bytes, ready for a store.
pub(super) fn sealed<T: Document>(body: &T) -> Bytes {
    Bytes::from(seal(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Note {
        text: String,
    }
    impl Document for Note {
        const KIND: &'static str = "note";
    }
    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Other {
        text: String,
    }
    impl Document for Other {
        const KIND: &'static str = "other";
    }

    fn note() -> Note {
        Note { text: "held".to_owned() }
    }

    #[test]
    fn a_sealed_document_is_one_json_object_and_comes_back() {
        let bytes = seal(&note());
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["kind"], "note");
        assert_eq!(json["text"], "held");
        assert_eq!(unseal::<Note>(&bytes), Ok(note()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_shows() {
        let bytes = seal(&note());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(unseal::<Note>(&damaged).is_err(), "byte {at} bit {bit}");
            }
            assert!(unseal::<Note>(&bytes[..at]).is_err(), "cut to {at}");
        }
    }

    #[test]
    fn a_document_of_another_kind_is_refused() {
        let refused = unseal::<Other>(&seal(&note())).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it is no other of a version this agent can read: it is a \"note\" of format 1"
        );
    }
}
