//! The repository: its format on the store, and everything that reads and writes it.
//!
//! The format is described byte for byte in `FORMAT.md` beside this file. Nothing here knows an engine.

mod codec;
mod document;
mod error;
mod evidence;
mod layout;
pub mod lease;
mod lineage;
pub mod log;
mod manifest;
mod map;
mod pack;
pub mod prune;
pub mod reader;
pub mod retention;
pub mod store;
pub mod tail;
mod top;
pub mod writer;

pub use document::{Document, DocumentFault};
pub use error::{Damage, RepositoryError, RepositoryResult};
pub use evidence::{Evidence, Level, Standing, Step, Verdict};
pub use layout::Layout;
pub use lineage::{Fork, Lineage, Owner};
pub use manifest::{BackupId, Manifest, MapRow, Sizes};
pub use map::{FilePart, PackRef, PageMap, ZERO_PACK};
pub use pack::{PACK_TARGET, PAGE_SIZE, PAGES_PER_FRAME, PageHash, page_hash};
pub use top::{Repository, System};
