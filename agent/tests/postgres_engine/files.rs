//! The data directory as files: control file, first pages of the log, checksums, and what a backup copies.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;

use holdfast_agent::engine::postgres::checksum::{PageVerdict, judge};
use holdfast_agent::engine::postgres::control::{self, ClusterState};
use holdfast_agent::engine::postgres::listing::{Fork, Listing, list};
use holdfast_agent::engine::postgres::lsn::{Lsn, Timeline};
use holdfast_agent::engine::postgres::wal::{FirstPageError, WalSegment, check_first_page};

use crate::cluster::{Cluster, bin, command, give, succeed};

fn controldata(data_dir: &Path) -> impl Fn(&str) -> String + use<> {
    let output = succeed(command(bin().join("pg_controldata")).arg(data_dir));
    let text = String::from_utf8(output.stdout).unwrap();
    move |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("{name}")).trim().to_owned()
    }
}

#[test]
fn the_control_file_says_what_pg_controldata_says() {
    let cluster = Cluster::made_with(&["--wal-segsize=4"]);
    let control = control::read(&cluster.data()).unwrap();
    let says = controldata(&cluster.data());
    assert_eq!(control.system_identifier.to_string(), says("Database system identifier"));
    assert_eq!(control.control_version.to_string(), says("pg_control version number"));
    assert_eq!(control.catalog_version.to_string(), says("Catalog version number"));
    assert_eq!((control.state, says("Database cluster state").as_str()), (ClusterState::ShutDown, "shut down"));
    assert_eq!(control.checkpoint.to_string(), says("Latest checkpoint location"));
    assert_eq!(control.redo.to_string(), says("Latest checkpoint's REDO location"));
    assert_eq!(control.timeline.to_string(), says("Latest checkpoint's TimeLineID"));
    assert_eq!(control.minimum_recovery_point.to_string(), says("Minimum recovery ending location"));
    assert_eq!(control.wal_segment_size.bytes().to_string(), says("Bytes per WAL segment"));
    assert_eq!(control.block_size.to_string(), says("Database block size"));
    assert_eq!(control.blocks_per_segment.to_string(), says("Blocks per segment of large relation"));
    assert_eq!(u32::from(control.data_checksums).to_string(), says("Data page checksum version"));
    assert_eq!(control.minimums.max_connections.to_string(), says("max_connections setting"));
    assert_eq!(control.minimums.max_locks_per_transaction.to_string(), says("max_locks_per_xact setting"));
}

#[test]
fn a_segment_of_the_log_says_whose_it_is() {
    let cluster = Cluster::made_with(&["--wal-segsize=4"]);
    let control = control::read(&cluster.data()).unwrap();
    // The checkpoint's segment: later ones are recycled, and hold another's content until they are written.
    let segment = WalSegment::at(control.timeline, control.checkpoint, control.wal_segment_size);
    let path = cluster.data().join("pg_wal").join(segment.to_string());
    let page = check_first_page(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(page.belongs_to(control.system_identifier, &segment), Ok(()));
    assert_eq!((page.timeline, page.page_address, page.block_size), (Timeline(1), segment.start(), 8192));
    let misnamed = FirstPageError::Misnamed { segment: segment.next(), found: segment };
    assert_eq!(page.belongs_to(control.system_identifier, &segment.next()), Err(misnamed));
}

/// Verdicts on every page of every relation, as (path, block, verdict).
fn verdicts(data_dir: &Path) -> Vec<(String, u32, PageVerdict)> {
    let mut verdicts = Vec::new();
    for file in list(data_dir).unwrap().files {
        let Some(relation) = file.relation else { continue };
        let content = std::fs::read(data_dir.join(&file.path)).unwrap();
        for (index, page) in content.chunks_exact(8192).enumerate() {
            let block = relation.segment * 131_072 + u32::try_from(index).unwrap();
            verdicts.push((file.path.clone(), block, judge(page, block, Lsn(u64::MAX))));
        }
    }
    verdicts
}

#[test]
fn pages_are_judged_as_pg_checksums_judges_them() {
    let mut cluster = Cluster::started();
    cluster.run("CREATE TABLE t AS SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i; CREATE INDEX ON t (i)");
    cluster.run("VACUUM t; CHECKPOINT");
    let path = cluster.ask("pg_relation_filepath('t')");
    cluster.stop();
    let all = verdicts(&cluster.data());
    let bad: Vec<_> = all.iter().filter(|(_, _, v)| !matches!(v, PageVerdict::Good | PageVerdict::New)).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(all.len() > 1000, "{}", all.len());

    let file = cluster.data().join(&path);
    let mut content = std::fs::read(&file).unwrap();
    content[3 * 8192 + 5000] ^= 1;
    std::fs::write(&file, content).unwrap();
    let bad: Vec<_> =
        verdicts(&cluster.data()).into_iter().filter(|(_, _, v)| matches!(v, PageVerdict::Bad { .. })).collect();
    let [(found, 3, PageVerdict::Bad { stored, computed })] = bad.as_slice() else { panic!("{bad:?}") };
    assert_eq!(found, &path);
    let output = command(bin().join("pg_checksums")).arg("-D").arg(cluster.data()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("block 3: calculated checksum {computed:X} but block contains {stored:X}");
    assert!(said.contains(&expected), "{said} / {expected}");
}

/// What PostgreSQL's own backup copies, but for what it makes itself.
fn base_backup(cluster: &Cluster, mapping: &[String]) -> (BTreeSet<String>, BTreeSet<String>) {
    let target = cluster.path("base");
    let mut backup = command(bin().join("pg_basebackup"));
    backup.arg("-h").arg(cluster.root.path()).args(["-U", "postgres", "-X", "none", "--no-sync", "--no-manifest"]);
    backup.args(["-c", "fast", "-D"]).arg(&target);
    for mapping in mapping {
        backup.arg(format!("--tablespace-mapping={mapping}"));
    }
    succeed(&mut backup);
    let (mut files, mut directories) = (BTreeSet::new(), BTreeSet::new());
    walk(&target, "", &mut files, &mut directories);
    for own in ["backup_label", "tablespace_map"] {
        files.remove(own);
    }
    // The server makes these anew when it starts.
    directories.retain(|path| !path.starts_with("pg_wal/"));
    (files, directories)
}

fn walk(root: &Path, below: &str, files: &mut BTreeSet<String>, directories: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(root.join(below)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if root.join(&path).is_dir() {
            if !root.join(&path).is_symlink() {
                directories.insert(path.clone());
            }
            walk(root, &path, files, directories);
        } else {
            files.insert(path);
        }
    }
}

fn paths(listing: &Listing) -> (BTreeSet<String>, BTreeSet<String>) {
    let files = listing.files.iter().map(|file| file.path.clone()).collect();
    (files, listing.directories.iter().map(|directory| directory.path.clone()).collect())
}

#[test]
fn a_backup_copies_what_postgresqls_own_copies() {
    let mut cluster = Cluster::new();
    // The log and the statistics on another volume.
    for name in ["pg_wal", "pg_stat_tmp"] {
        std::fs::rename(cluster.data().join(name), cluster.path(name)).unwrap();
        symlink(cluster.path(name), cluster.data().join(name)).unwrap();
    }
    for name in ["space", "space-copy"] {
        std::fs::create_dir(cluster.path(name)).unwrap();
        give(&cluster.path(name));
    }
    cluster.start(&["allow_in_place_tablespaces=on"]);
    let space = cluster.path("space").display().to_string();
    cluster.run(&format!("CREATE TABLESPACE space LOCATION '{space}'"));
    cluster.run("CREATE DATABASE shop; CREATE TABLE t TABLESPACE space AS SELECT 1 AS i; VACUUM t");
    cluster.run("CREATE UNLOGGED TABLE u (i int PRIMARY KEY); INSERT INTO u VALUES (1); VACUUM u; CHECKPOINT");
    let mut session = cluster.person();
    session.batch_execute("CREATE TEMP TABLE gone AS SELECT 1 AS i").unwrap();
    session.batch_execute("SET allow_in_place_tablespaces = on").unwrap();
    session.batch_execute("CREATE TABLESPACE place LOCATION ''").unwrap();
    session.batch_execute("CREATE TABLE p TABLESPACE place AS SELECT 1 AS i").unwrap();
    let temporary = cluster.data().join("base/pgsql_tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    std::fs::write(temporary.join("pgsql_tmp1.0"), "x").unwrap();
    std::fs::write(cluster.data().join("backup_label.old"), "x").unwrap();
    give(&temporary);

    let listing = list(&cluster.data()).unwrap();
    let (files, directories) = paths(&listing);
    let (mut expected_files, mut expected_directories) =
        base_backup(&cluster, &[format!("{space}={}", cluster.path("space-copy").display())]);
    // Here the rules are ours: nothing is copied of an earlier backup's label, nor of what sorts spilled.
    expected_files.retain(|path| !path.contains("pgsql_tmp") && path != "backup_label.old");
    expected_directories.retain(|path| !path.contains("pgsql_tmp"));
    assert_eq!(files, expected_files);
    assert_eq!(directories, expected_directories);

    let [tablespace] = listing.tablespaces.as_slice() else { panic!("{:?}", listing.tablespaces) };
    assert_eq!(tablespace.location, cluster.path("space"));
    assert_eq!(listing.notes, Vec::<String>::new());
    assert_eq!(listing.files.last().unwrap().path, "global/pg_control");
    let sorted = listing.files.iter().rev().skip(1).map(|file| &file.path);
    assert!(sorted.clone().zip(sorted.skip(1)).all(|(later, earlier)| earlier < later));
}

#[test]
fn of_an_unlogged_table_only_the_init_fork_is_copied() {
    let cluster = Cluster::started();
    cluster.run("CREATE UNLOGGED TABLE u (i int); INSERT INTO u SELECT generate_series(1, 5000); VACUUM u; CHECKPOINT");
    let path = cluster.ask("pg_relation_filepath('u')");
    assert!(cluster.data().join(format!("{path}_fsm")).exists());
    let listing = list(&cluster.data()).unwrap();
    let found: Vec<_> = listing.files.iter().filter(|file| file.path.starts_with(&path)).collect();
    let [file] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(file.path, format!("{path}_init"));
    assert_eq!(file.relation.unwrap().fork, Fork::Init);
}

#[test]
fn only_files_with_pages_of_relations_are_taken_for_such() {
    let cluster = Cluster::new();
    let listing = list(&cluster.data()).unwrap();
    let relation = |path: &str| listing.files.iter().find(|file| file.path == path).unwrap().relation;
    for path in ["global/pg_control", "global/pg_filenode.map", "PG_VERSION", "base/1/PG_VERSION", "pg_xact/0000"] {
        assert_eq!(relation(path), None, "{path}");
    }
    assert_eq!(relation("base/1/1259").unwrap().fork, Fork::Main);
    assert_eq!(relation("base/1/1259_fsm").unwrap().fork, Fork::FreeSpace);
    assert_eq!(relation("global/1262").unwrap().segment, 0);
}

#[test]
fn a_tablespace_without_its_directory_is_an_error_not_an_omission() {
    let cluster = Cluster::new();
    let place = cluster.path("lost");
    symlink(&place, cluster.data().join("pg_tblspc/16500")).unwrap();
    let error = list(&cluster.data()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("tablespace 16500 has no directory {}", place.display())), "{error}");
    std::fs::create_dir(&place).unwrap();
    let error = list(&cluster.data()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("tablespace 16500 has no directory {}/PG_", place.display())), "{error}");
}

#[test]
fn a_link_where_data_belongs_is_an_error_and_elsewhere_a_note() {
    let cluster = Cluster::new();
    symlink("/etc/hostname", cluster.data().join("server.crt")).unwrap();
    let listing = list(&cluster.data()).unwrap();
    assert_eq!(listing.notes, ["server.crt: left out, a symbolic link (as in PostgreSQL's own backups)"]);
    std::fs::rename(cluster.data().join("base/1"), cluster.path("moved")).unwrap();
    symlink(cluster.path("moved"), cluster.data().join("base/1")).unwrap();
    let error = list(&cluster.data()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}/base/1 is a symbolic link", cluster.data().display())), "{error}");
}
