//! Memory: for tests, and to try things out. Gone when the process ends.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use jiff::Timestamp;

use super::{
    Created, Entry, Key, Object, Store, StoreError, StoreFault, StoreResult, Swapped, Version, Walk, range_length,
};

static NAMED: LazyLock<Mutex<BTreeMap<String, Arc<MemoryStore>>>> = LazyLock::new(Mutex::default);

/// Objects in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    name: String,
    objects: Mutex<Objects>,
}

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<Key, Stored>,
    writes: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    body: Bytes,
    modified: Timestamp,
    version: u64,
}

impl Stored {
    fn entry(&self, key: &Key) -> Entry {
        Entry { key: key.clone(), size: self.body.len() as u64, modified: self.modified }
    }
}

impl Objects {
    fn put(&mut self, key: &Key, body: Bytes) -> Version {
        self.writes += 1;
        self.by_key.insert(key.clone(), Stored { body, modified: Timestamp::now(), version: self.writes });
        version(self.writes)
    }
}

fn version(number: u64) -> Version {
    Version(number.to_string())
}

impl MemoryStore {
    /// An empty store that nobody else knows.
    pub fn new() -> Self {
        Self::default()
    }

    /// The store of this name; everyone in this process who asks for the name gets the same.
    pub fn named(name: &str) -> Arc<Self> {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        let store =
            named.entry(name.to_owned()).or_insert_with(|| Arc::new(Self { name: name.to_owned(), ..Self::default() }));
        Arc::clone(store)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        // A map is whole after every call that changes it, whatever happened to the thread that made it.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self, action: &'static str, key: &Key) -> StoreResult<Stored> {
        let stored = self.objects().by_key.get(key).cloned();
        stored.ok_or_else(|| self.error(action, key, StoreFault::NotFound))
    }

    fn error(&self, action: &'static str, key: &Key, fault: StoreFault) -> StoreError {
        StoreError::new(action, key, self.location(), fault)
    }

    /// The first object below `prefix`, after `after` if that is given.
    fn next(&self, prefix: &str, after: Option<&Key>) -> Option<Entry> {
        let objects = self.objects();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = objects.by_key.range::<Key, _>((from, Bound::Unbounded));
        rest.find(|(key, _)| key.as_str().starts_with(prefix)).map(|(key, stored)| stored.entry(key))
    }
}

/// What the keys below `prefix` begin with.
fn beginning(prefix: &Key) -> String {
    if prefix.as_str().is_empty() { String::new() } else { format!("{prefix}/") }
}

impl Store for MemoryStore {
    fn location(&self) -> String {
        format!("memory://{}", self.name)
    }

    fn create(&self, key: &Key, body: Bytes) -> StoreResult<Created> {
        let mut objects = self.objects();
        if objects.by_key.contains_key(key) {
            return Ok(Created::Existed);
        }
        objects.put(key, body);
        Ok(Created::New)
    }

    fn get(&self, key: &Key, limit: u64) -> StoreResult<Object> {
        let stored = self.stored("get", key)?;
        let size = stored.body.len() as u64;
        if size > limit {
            return Err(self.error("get", key, StoreFault::TooLarge { size, limit }));
        }
        Ok(Object { body: stored.body, version: version(stored.version) })
    }

    fn get_range(&self, key: &Key, range: Range<u64>) -> StoreResult<Bytes> {
        let action = "get a range of";
        range_length(&range).map_err(|fault| self.error(action, key, fault))?;
        let stored = self.stored(action, key)?;
        let size = stored.body.len() as u64;
        if range.end > size {
            return Err(self.error(action, key, StoreFault::Short { size, wanted: range.end }));
        }
        Ok(stored.body.slice(range.start as usize..range.end as usize))
    }

    fn head(&self, key: &Key) -> StoreResult<Option<Entry>> {
        Ok(self.objects().by_key.get(key).map(|stored| stored.entry(key)))
    }

    fn list(&self, prefix: &Key, each: &mut dyn FnMut(Entry) -> Walk) -> StoreResult<()> {
        let beginning = beginning(prefix);
        let mut entry = self.next(&beginning, None);
        while let Some(found) = entry {
            let key = found.key.clone();
            // Called without the lock: what it does may well be to delete or read.
            if each(found) == Walk::Stop {
                break;
            }
            entry = self.next(&beginning, Some(&key));
        }
        Ok(())
    }

    fn children(&self, prefix: &Key) -> StoreResult<Vec<String>> {
        let beginning = beginning(prefix);
        let objects = self.objects();
        let below = objects.by_key.keys().filter_map(|key| key.as_str().strip_prefix(&beginning));
        let mut names: Vec<String> = below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn delete(&self, key: &Key) -> StoreResult<()> {
        self.objects().by_key.remove(key);
        Ok(())
    }

    fn compare_and_swap(&self, key: &Key, expected: Option<&Version>, body: Bytes) -> StoreResult<Swapped> {
        let mut objects = self.objects();
        let found = objects.by_key.get(key).map(|stored| version(stored.version));
        if found.as_ref() == expected { Ok(Swapped::Done(objects.put(key, body))) } else { Ok(Swapped::Conflict) }
    }

    fn now(&self) -> StoreResult<Timestamp> {
        Ok(Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::store::conformance;

    #[test]
    fn memory_conforms() {
        conformance::conforms(&MemoryStore::new());
    }

    #[test]
    fn a_name_is_one_store_for_the_whole_process() {
        let key = Key::parse("a").unwrap();
        assert_eq!(MemoryStore::named("shared").create(&key, Bytes::from_static(b"1")).unwrap(), Created::New);
        assert_eq!(MemoryStore::named("shared").create(&key, Bytes::from_static(b"2")).unwrap(), Created::Existed);
        assert_eq!(MemoryStore::named("other").head(&key).unwrap(), None);
        assert_eq!(MemoryStore::named("shared").location(), "memory://shared");
    }
}
