//! A disk that fills up: a small file system of its own, mounted as root, else by the same test once
//! more in a user namespace. Where neither may mount, the tests fail and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use event_store::{EventStore, Options, Outcome, WriteError};

use crate::support::*;

/// A tmpfs of a given size, unmounted when it goes.
struct Small(
    PathBuf,
    #[expect(dead_code, reason = "keeps the folder")] tempfile::TempDir,
);

/// Set for the test that runs in a namespace of its own.
const INSIDE: &str = "WARDEN_TEST_NAMESPACE";

impl Small {
    /// None if the test was done in a namespace, and passed there.
    fn mount(mebibytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "warden-test"])
            .arg(dir.path())
            .output()
            .unwrap();
        if mounted.status.success() {
            return Some(Self(dir.path().to_owned(), dir));
        }
        let why = String::from_utf8_lossy(&mounted.stderr);
        assert!(
            std::env::var_os(INSIDE).is_none(),
            "can't mount in a user namespace either: {why}; run as root"
        );
        test_in_namespace(&why);
        None
    }

    fn fill(&self, leave: u64) -> PathBuf {
        let path = self.0.join("ballast");
        let free = free(&self.0);
        std::fs::write(&path, vec![1; usize::try_from(free - leave).unwrap()]).unwrap();
        path
    }
}

/// Runs the test of this thread in user and mount namespaces of its own, where anybody may mount.
fn test_in_namespace(why: &str) {
    let test = std::thread::current();
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test.name().unwrap()])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && out.contains("1 passed"),
        "can't mount ({why}), and in a user namespace: {out}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

impl Drop for Small {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.0).status();
        assert!(
            done.is_ok_and(|s| s.success()),
            "can't unmount {}",
            self.0.display()
        );
    }
}

fn free(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_bavail * stat.f_frsize
}

fn store_with(dir: &Path, reserve: u64) -> EventStore {
    let options = Options {
        reserve,
        ..Options::default()
    };
    EventStore::open(&dir.join("store"), options).unwrap()
}

#[test]
fn below_the_reserve_events_are_refused_and_other_writes_are_not() {
    let Some(disk) = Small::mount(32) else { return };
    let store = store_with(&disk.0, 4 << 20);
    send(&store, fault(1, "79"));
    assert_eq!(store.footing(), Ok(()));
    let ballast = disk.fill(2 << 20);
    let told = store.footing().unwrap_err();
    assert!(!told.is_final(), "{told}");
    let refused = store.append(vec![fault(2, "48")]).wait().unwrap_err();
    assert_eq!(told.code(), refused.code());
    assert!(matches!(refused, WriteError::DiskFull { free, .. } if free <= 2 << 20));
    store.set_fencing(3).wait().unwrap();
    store.state_put("k", vec![1], 3).wait().unwrap();
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(store.footing(), Ok(()));
    assert_eq!(send(&store, fault(2, "48")).outcome, Outcome::Stored(2));
}

#[test]
fn a_disk_that_is_full_loses_nothing_acknowledged_and_the_store_recovers() {
    let Some(disk) = Small::mount(24) else { return };
    let store = store_with(&disk.0, 0);
    send(&store, fault(1, "c1"));
    let ballast = disk.fill(512 << 10);
    let mut acknowledged = vec!["id-1".to_owned()];
    let mut refused = 0;
    for n in 2..400 {
        let mut new = fault(n, &format!("c{n}"));
        new.event.message = "m".repeat(8_000);
        match store.append(vec![sealed(new)]).wait() {
            Ok(_) => acknowledged.push(format!("id-{n}")),
            Err(error) => {
                assert_eq!(error.code(), "store_disk_full", "{error}");
                refused += 1;
            }
        }
        if refused > 5 {
            break;
        }
    }
    assert!(refused > 5, "the disk never became full");
    assert_eq!(
        store.footing().map_err(|e| e.code()),
        Err("store_disk_full")
    );
    std::fs::remove_file(ballast).unwrap();
    send(&store, fault(1_000, "after"));
    assert_eq!(store.footing(), Ok(()));
    acknowledged.push("id-1000".to_owned());
    store.close();
    let store = store_with(&disk.0, 0);
    let events = store.events(None, 0, 1_000).unwrap();
    let ids: Vec<&str> = events.iter().map(|e| e.id.as_str()).collect();
    assert_eq!(ids, acknowledged);
    let seqs: Vec<u64> = events.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, (1..=ids.len() as u64).collect::<Vec<_>>());
    assert_eq!(open_codes(&store).len(), ids.len());
    store.close();
}
