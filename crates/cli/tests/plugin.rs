//! `kubectl warden`: kubectl runs a program `kubectl-warden` on the PATH with what follows.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::kit::{Ran, program};

/// Runs the program under another name, as a link or as a copy of it.
fn run_as(name: &str, copied: bool, arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let (built, path) = (program(), folder.path().join(name));
    if copied {
        // By a program of its own: a file that this process has open for writing may be inherited by
        // a test that starts one at that moment, and can't be run until then.
        let copy = Command::new("cp")
            .arg(built.get_program())
            .arg(&path)
            .status();
        assert!(copy.unwrap().success());
    } else {
        symlink(built.get_program(), &path).unwrap();
    }
    Command::new(&path)
        .args(arguments)
        .env_clear()
        .output()
        .unwrap()
        .into()
}

#[test]
fn as_kubectl_warden_it_shows_the_usage_of_the_plugin() {
    for copied in [true, false] {
        let help = run_as("kubectl-warden", copied, &["--help"]);
        assert_eq!(help.code, Some(0), "{}", help.err);
        assert!(
            help.out
                .contains("Usage: kubectl warden [OPTIONS] <COMMAND>"),
            "{}",
            help.out
        );
        let help = run_as("kubectl-warden", copied, &["explain", "--help"]);
        let usage = "Usage: kubectl warden explain [OPTIONS] <NODE>";
        assert!(help.out.contains(usage), "{}", help.out);
        let wrong = run_as("kubectl-warden", copied, &["explain"]);
        assert_eq!(wrong.code, Some(2));
        assert!(
            wrong.err.contains("kubectl warden explain"),
            "{}",
            wrong.err
        );
    }
}

#[test]
fn under_its_own_name_it_is_warden() {
    let help = run_as("warden", false, &["explain", "--help"]);
    let usage = "Usage: warden explain [OPTIONS] <NODE>";
    assert!(help.out.contains(usage), "{}", help.out);
}

#[test]
fn as_kubectl_warden_it_does_what_warden_does() {
    let scanned = run_as("kubectl-warden", false, &["scan", "/no/such/file"]);
    assert_eq!(scanned.code, Some(2));
    assert!(scanned.err.contains("/no/such/file"), "{}", scanned.err);
}
