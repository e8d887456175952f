//! Listing objects.

use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_s3::types::Object as Listed;

use super::{S3Store, fault, get};
use crate::repository::store::{Entry, Key, StoreFault, StoreResult, Walk};

const ACTION: &str = "list";

impl S3Store {
    pub(super) fn list_each(&self, prefix: &Key, each: &mut dyn FnMut(Entry) -> Walk) -> StoreResult<()> {
        let beginning = self.beginning(prefix);
        let mut next = None;
        loop {
            let page = self.run(ACTION, prefix, self.page(&beginning, None, next, None))?;
            for listed in page.contents() {
                let entry = self.run(ACTION, prefix, async { self.entry(listed) })?;
                if entry.is_some_and(|entry| each(entry) == Walk::Stop) {
                    return Ok(());
                }
            }
            next = self.run(ACTION, prefix, async { next_page(page) })?;
            if next.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) fn list_names(&self, prefix: &Key) -> StoreResult<Vec<String>> {
        let beginning = self.beginning(prefix);
        let (mut names, mut next) = (Vec::new(), None);
        loop {
            let page = self.run(ACTION, prefix, self.page(&beginning, Some("/"), next, None))?;
            let objects = page.contents().iter().filter_map(Listed::key);
            let levels = page.common_prefixes().iter().filter_map(|level| level.prefix());
            let found = objects.chain(levels).filter_map(|name| name.strip_prefix(&beginning));
            // A name that is no key is none of ours.
            let found = found.map(|name| name.trim_end_matches('/')).filter(|name| Key::root().child(name).is_ok());
            names.extend(found.map(str::to_owned));
            next = self.run(ACTION, prefix, async { next_page(page) })?;
            if next.is_none() {
                break;
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// One page of a listing, of what begins with `beginning`.
    pub(super) async fn page(
        &self,
        beginning: &str,
        delimiter: Option<&str>,
        token: Option<String>,
        most: Option<i32>,
    ) -> Result<ListObjectsV2Output, StoreFault> {
        let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(beginning);
        let request = request.set_delimiter(delimiter.map(str::to_owned));
        let answer = request.set_continuation_token(token).set_max_keys(most).send().await;
        let page = answer.map_err(|error| match fault::of(&error, &self.bucket) {
            StoreFault::NotFound => fault::no_bucket(&self.bucket),
            other => other,
        })?;
        self.bucket_was_seen();
        Ok(page)
    }

    /// What the names of all objects below `prefix` begin with.
    pub(super) fn beginning(&self, prefix: &Key) -> String {
        let name = self.name(prefix);
        match name.trim_end_matches('/') {
            "" => String::new(),
            name => format!("{name}/"),
        }
    }

    /// The entry of a listed object; none where its name is no key, so that it is none of ours.
    fn entry(&self, listed: &Listed) -> Result<Option<Entry>, StoreFault> {
        let name = listed.key().and_then(|name| name.strip_prefix(&self.beginning(&Key::root())));
        let Some(key) = name.and_then(|name| Key::parse(name).ok()) else { return Ok(None) };
        let size = get::size_of(listed.size())?;
        Ok(Some(Entry { key, size, modified: get::modified(listed.last_modified())? }))
    }
}

/// Where the next page begins; none after the last.
fn next_page(page: ListObjectsV2Output) -> Result<Option<String>, StoreFault> {
    match (page.is_truncated, page.next_continuation_token) {
        (Some(true), None) => {
            Err(StoreFault::Refused("the server cut a listing and does not say how it goes on".to_owned()))
        }
        (Some(true), token) => Ok(token),
        _ => Ok(None),
    }
}
