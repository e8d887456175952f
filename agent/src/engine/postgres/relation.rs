//! The names of relations' files (`relpath.c`, and `reinit.c` for which of them a backup leaves out).

/// One of the files that a relation is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fork {
    /// The data.
    Main,
    /// `_fsm`: where there is free space.
    FreeSpace,
    /// `_vm`: which pages are visible to all.
    Visibility,
    /// `_init`: what an unlogged relation is reset to by recovery.
    Init,
}

/// Which part of a relation a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelationFile {
    /// The number behind the point in `16384.2`; 0 where there is none. The file's first block has the number
    /// `segment` times the blocks per segment.
    pub segment: u32,
    /// The fork.
    pub fork: Fork,
}

/// A relation's file name, taken apart.
pub(super) struct RelationName {
    /// `relfilenode`.
    pub(super) number: u32,
    pub(super) file: RelationFile,
}

/// Understands `16384`, `16384.1`, `16384_fsm`, `16384_vm.1`, `16384_init`; anything else is no relation's file.
pub(super) fn parse(name: &str) -> Option<RelationName> {
    let (stem, segment) = match name.split_once('.') {
        Some((stem, segment)) => (stem, plain_number(segment)?),
        None => (name, 0),
    };
    let (number, fork) = match stem.split_once('_') {
        None => (stem, Fork::Main),
        Some((number, "fsm")) => (number, Fork::FreeSpace),
        Some((number, "vm")) => (number, Fork::Visibility),
        Some((number, "init")) => (number, Fork::Init),
        Some(_) => return None,
    };
    Some(RelationName { number: plain_number(number)?, file: RelationFile { segment, fork } })
}

/// Whether this is a temporary relation's file: `t3_16384`, in every fork and segment.
pub(super) fn is_temporary(name: &str) -> bool {
    let Some((backend, relation)) = name.strip_prefix('t').and_then(|rest| rest.split_once('_')) else {
        return false;
    };
    plain_number(backend).is_some() && parse(relation).is_some()
}

/// Digits only, without a sign or a leading zero (but `0` itself names the first backend of temporary relations).
fn plain_number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    if plain && !leading_zero { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("16384", 0, Fork::Main)]
    #[case("16384.12", 12, Fork::Main)]
    #[case("16384_fsm", 0, Fork::FreeSpace)]
    #[case("16384_vm.1", 1, Fork::Visibility)]
    #[case("16384_init", 0, Fork::Init)]
    fn a_relations_file_says_its_fork_and_segment(#[case] name: &str, #[case] segment: u32, #[case] fork: Fork) {
        let parsed = parse(name).unwrap();
        assert_eq!((parsed.number, parsed.file), (16384, RelationFile { segment, fork }));
    }

    #[rstest::rstest]
    #[case("PG_VERSION")]
    #[case("pg_filenode.map")]
    #[case("16384_")]
    #[case("16384.")]
    #[case("16384_foo")]
    #[case("016384")]
    #[case("16384.1.2")]
    #[case("+16384")]
    #[case("99999999999")]
    #[case("t3_16384")]
    fn other_names_are_no_relations(#[case] name: &str) {
        assert!(parse(name).is_none());
    }

    #[test]
    fn temporary_relations_are_known_by_their_backend() {
        for name in ["t3_16384", "t12_16384_fsm", "t0_16384_vm.1"] {
            assert!(is_temporary(name), "{name}");
        }
        for name in ["t_16384", "t3_", "t3_x", "t3", "table_16384", "16384"] {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
