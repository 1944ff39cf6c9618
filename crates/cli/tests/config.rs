//! `warden config check`, beside programs that answer as ours do.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::kit::{Ran, program};

const FAULTS: &str = r#"
[[fault]]
key = "ingest.mode"
value = '"on"'
allowed = "enforce, audit or off"

[[fault]]
key = "node_name"
allowed = "a DNS subdomain: the node's name"
"#;

/// A folder on the file system of the built program.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Puts a program of that name into `folder`, which prints `out` and exits with `code`.
fn answering(folder: &Path, name: &str, out: &str, code: i32) {
    // A link, not a new file: one that was just written can't always be run ("text file busy").
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/answers.sh");
    symlink(script, folder.join(name)).unwrap();
    std::fs::write(folder.join(format!("{name}.out")), out).unwrap();
    std::fs::write(folder.join(format!("{name}.code")), code.to_string()).unwrap();
}

/// Runs `warden` as if it were installed in `folder`.
fn check(folder: &Path, text: &str, path: &Path, flags: &[&str]) -> Ran {
    let own = folder.join("warden");
    if !own.exists() {
        std::fs::hard_link(env!("CARGO_BIN_EXE_warden"), &own).unwrap();
    }
    std::fs::write(folder.join("a.toml"), text).unwrap();
    let mut command = Command::new(own);
    command.env_clear().env("PATH", path).current_dir(folder);
    command.args(["config", "check", "a.toml"]).args(flags);
    command.output().unwrap().into()
}

#[test]
fn every_fault_is_printed_with_what_would_be_right() {
    let folder = folder();
    answering(folder.path(), "warden-controller", FAULTS, 2);
    let ran = check(folder.path(), "profile = 'x'", Path::new("/"), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
    insta::assert_snapshot!(ran.out);
    let json = check(
        folder.path(),
        "profile = 'x'",
        Path::new("/"),
        &["--format", "json"],
    );
    let want = r#"{"faults":[{"allowed":"enforce, audit or off","key":"ingest.mode","value":"\"on\""},{"allowed":"a DNS subdomain: the node's name","key":"node_name","value":null}],"file":"a.toml","program":"warden-controller"}"#;
    assert_eq!((json.code, json.out.trim_end()), (Some(1), want));
}

#[test]
fn a_good_file_is_said_to_be_good_by_the_program_found_in_path() {
    let (own, other) = (folder(), folder());
    answering(other.path(), "warden-agent", "", 0);
    let ran = check(own.path(), "[kernel_log]", other.path(), &[]);
    assert_eq!(
        ran.out, "a.toml (warden-agent): nothing is wrong\n",
        "{ran:?}"
    );
    assert_eq!(ran.code, Some(0));
}

#[test]
fn what_can_not_be_checked_says_why() {
    let folder = folder();
    answering(folder.path(), "warden-agent", "no toml [", 101);
    let table = [
        (
            "[kernel_log]",
            "warden-agent checks its own configuration, and it answered with exit status: 101",
        ),
        (
            "profile = 'x'",
            "warden-controller checks its own configuration, and it can't be run",
        ),
        ("[kernel_log]\n[store]", "say whose it is with --program"),
    ];
    for (text, want) in table {
        let ran = check(folder.path(), text, Path::new("/"), &[]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.err.contains(want), "{want:?} is not in {}", ran.err);
    }
    let ran = Ran::from(
        program()
            .args(["config", "check", "/nowhere"])
            .output()
            .unwrap(),
    );
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.err.contains("configuration /nowhere: No such file"),
        "{}",
        ran.err
    );
}
