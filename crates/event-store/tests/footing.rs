//! A store whose files go while it is open.

use std::path::Path;

use event_store::{EventStore, Options, Outcome, WriteError};

use crate::support::*;

fn opened(dir: &Path) -> EventStore {
    EventStore::open(dir, Options::default()).unwrap()
}

fn is_lost(result: &Result<(), WriteError>) -> bool {
    matches!(result, Err(error @ WriteError::Lost { .. }) if error.is_final())
}

#[test]
fn nothing_is_acknowledged_once_the_folder_was_removed_and_the_next_store_is_left_alone() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("store");
    let store = opened(&dir);
    send(&store, fault(1, "79"));
    assert_eq!(store.footing(), Ok(()));
    std::fs::remove_dir_all(&dir).unwrap();
    // The writer notices by itself, with the first write.
    let refused = store.append(vec![fault(2, "48")]).wait().unwrap_err();
    assert_eq!(refused.code(), "store_lost", "{refused}");
    assert!(refused.to_string().contains("store.db"), "{refused}");
    assert!(is_lost(&store.footing()));
    let next = opened(&dir);
    assert!(next.is_new());
    assert_eq!(send(&next, fault(3, "63")).outcome, Outcome::Stored(1));
    // Files are there again, but they are another store's.
    assert!(is_lost(&store.state_put("k", vec![1], 1).wait()));
    store.close();
    assert_eq!(send(&next, fault(4, "64")).outcome, Outcome::Stored(2));
    next.close();
    assert_eq!(opened(&dir).events(None, 0, 9).unwrap().len(), 2);
}

#[test]
fn each_file_counts_and_nobody_has_to_write() {
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.lock"] {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        std::fs::remove_file(dir.path().join(name)).unwrap();
        let why = store.footing();
        assert!(is_lost(&why), "{name}: {why:?}");
        let refused = store.append(vec![fault(1, "79")]).wait();
        assert_eq!(refused.map(drop), why, "{name}");
    }
    let parent = tempfile::tempdir().unwrap();
    let (dir, elsewhere) = (parent.path().join("store"), parent.path().join("old"));
    let store = opened(&dir);
    std::fs::rename(&dir, elsewhere).unwrap();
    assert!(is_lost(&store.footing()), "moved away");
}
