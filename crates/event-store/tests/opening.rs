//! Start-up checks.

use event_store::{EventStore, OpenError, Options};

use crate::support::*;

fn refused(dir: &std::path::Path) -> OpenError {
    EventStore::open(dir, Options::default()).unwrap_err()
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(refused(dir.path()).code(), "store_locked");
    let clone = store.clone();
    drop(store);
    assert_eq!(refused(dir.path()).code(), "store_locked");
    drop(clone);
    open(dir.path());
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close();
    let file = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    file.pragma_update(None, "user_version", 99).unwrap();
    drop(file);
    let error = refused(dir.path());
    assert!(matches!(
        error,
        OpenError::NewerSchema {
            found: 99,
            known: 5,
            ..
        }
    ));
    assert!(error.to_string().contains("schema version 99"), "{error}");
}

#[test]
fn an_older_schema_is_brought_up_to_date_with_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    store.close();
    let file = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let as_before = "DROP INDEX incidents_open_node; DROP INDEX machines_seen;
                     DROP INDEX scopes_machine; DROP TABLE shed; DROP TABLE held; DROP TABLE unopened; PRAGMA user_version = 1";
    file.execute_batch(as_before).unwrap();
    let store = open(dir.path());
    assert_eq!(open_codes(&store), ["79"]);
    let indexes = "SELECT count(*) FROM sqlite_schema
                   WHERE name IN ('incidents_open_node', 'machines_seen', 'scopes_machine', 'shed', 'held')";
    let count: u32 = file.query_row(indexes, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 5);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let junk = vec![0x55_u8; 8_192];
    std::fs::write(&path, &junk).unwrap();
    let error = refused(dir.path());
    assert_eq!(error.code(), "store_corrupt");
    assert!(error.to_string().contains("store.db"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), junk);
}

#[test]
fn a_damaged_page_is_found_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 1..200 {
        send(&store, fault(n, &n.to_string()));
    }
    store.close();
    let path = dir.path().join("store.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let pages = bytes.len() / 4_096;
    assert!(
        pages > 20,
        "everything is in the database after closing: {pages} pages"
    );
    for page in 2..pages {
        bytes[page * 4_096..page * 4_096 + 64].fill(0xaa);
    }
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(refused(dir.path()).code(), "store_corrupt");
}

#[test]
fn a_folder_that_can_not_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = refused(&file.join("store"));
    assert_eq!(error.code(), "store_io");
    assert!(error.to_string().contains("file/store"), "{error}");
}
