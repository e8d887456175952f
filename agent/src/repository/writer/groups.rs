//! Which files share a map.
//!
//! A large file has a map for each 1 GiB. Small files are grouped in the order of their paths; where a group ends is
//! decided by the paths themselves, so that a file that comes or goes changes one group and moves no other.

use crate::repository::map::{FilePart, PART_PAGES};
use crate::repository::pack::PAGE_SIZE;
use crate::snapshot::SourceFile;

/// Files with more pages have maps of their own.
const SMALL_PAGES: u64 = 1024;
/// A group is closed once it has this many pages.
const GROUP_PAGES: u64 = 8192;
/// Or once it has this many files and a path says so.
const GROUP_FILES: usize = 32;

/// The parts that one map covers, and for each the index of its file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) parts: Vec<FilePart>,
    pub(super) files: Vec<usize>,
}

/// Groups `files`, which are sorted by path.
pub(super) fn group(files: &[SourceFile]) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut open = Group::default();
    let mut open_pages = 0;
    for (index, file) in files.iter().enumerate() {
        let pages = file.size.div_ceil(PAGE_SIZE as u64);
        if pages > SMALL_PAGES {
            groups.extend(parts_of(file, pages).map(|part| Group { parts: vec![part], files: vec![index] }));
            continue;
        }
        open.parts.push(part(file, 0, pages as u32));
        open.files.push(index);
        open_pages += pages;
        if open_pages >= GROUP_PAGES || (open.files.len() >= GROUP_FILES && ends_a_group(&file.path)) {
            groups.push(std::mem::take(&mut open));
            open_pages = 0;
        }
    }
    if !open.files.is_empty() {
        groups.push(open);
    }
    groups
}

fn ends_a_group(path: &str) -> bool {
    blake3::hash(path.as_bytes()).as_bytes()[0].is_multiple_of(32)
}

fn parts_of(file: &SourceFile, pages: u64) -> impl Iterator<Item = FilePart> {
    (0..pages)
        .step_by(PART_PAGES as usize)
        .map(move |first| part(file, first, (pages - first).min(u64::from(PART_PAGES)) as u32))
}

fn part(file: &SourceFile, first_page: u64, pages: u32) -> FilePart {
    FilePart { path: file.path.clone(), size: file.size, first_page, pages, mode: file.mode, stamp: file.stamp }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::map::MAP_PAGES_LIMIT;
    use crate::snapshot::{Source, Stamp};
    use proptest::prelude::*;

    fn file(path: &str, pages: u64) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            source: Source::Bytes(Vec::new()),
            size: pages * PAGE_SIZE as u64,
            stamp: Stamp { mtime_ns: 0, ctime_ns: 0, inode: 0 },
            mode: 0o600,
            first_block: None,
        }
    }

    #[test]
    fn a_large_file_is_cut_into_parts_of_1_gib() {
        let groups = group(&[file("base/1/2", 131_072 + 5)]);
        let parts: Vec<_> = groups.iter().map(|group| (group.parts[0].first_page, group.parts[0].pages)).collect();
        assert_eq!(parts, [(0, 131_072), (131_072, 5)]);
    }

    #[test]
    fn a_new_file_changes_one_group_only() {
        let mut files: Vec<_> = (0..2000).map(|number| file(&format!("base/5/{number:05}"), 3)).collect();
        let before = group(&files);
        files.insert(1000, file("base/5/00999_fsm", 3));
        let after = group(&files);
        let names = |groups: &[Group]| -> Vec<Vec<String>> {
            groups.iter().map(|group| group.parts.iter().map(|part| part.path.clone()).collect()).collect()
        };
        let (before, after) = (names(&before), names(&after));
        assert!(before.len() > 10);
        assert_eq!(after.iter().filter(|group| !before.contains(group)).count(), 1);
    }

    #[test]
    fn every_file_is_in_exactly_one_group() {
        let files: Vec<_> = (0..500).map(|number| file(&format!("f{number:04}"), number % 1500)).collect();
        let mut seen: Vec<usize> = group(&files).into_iter().flat_map(|group| group.files).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..500).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn every_page_is_covered_once_and_in_order(sizes in prop::collection::vec(prop_oneof![
            4 => 0..2_000_u64,
            1 => 100_000..400_000_u64,
        ], 0..80)) {
            let files: Vec<_> = sizes.iter().enumerate().map(|(number, &pages)| file(&format!("f{number:03}"), pages)).collect();
            let groups = group(&files);
            let mut next = vec![0; files.len()];
            for group in &groups {
                prop_assert_eq!(group.parts.len(), group.files.len());
                prop_assert!(group.files.is_sorted());
                prop_assert!(group.parts.iter().map(|part| u64::from(part.pages)).sum::<u64>() <= u64::from(MAP_PAGES_LIMIT));
                for (part, &index) in group.parts.iter().zip(&group.files) {
                    prop_assert_eq!(&part.path, &files[index].path);
                    prop_assert_eq!(part.first_page, next[index]);
                    prop_assert!(part.pages <= PART_PAGES);
                    prop_assert!(sizes[index] <= SMALL_PAGES || group.parts.len() == 1, "a large file has maps of its own");
                    next[index] += u64::from(part.pages);
                }
            }
            prop_assert_eq!(next, sizes);
        }
    }
}
