//! `scripts/setup.sh` on machines with other Rusts than the pinned one, and without rustup.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// Writes a program of this machine.
fn program(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The system's programs without any Rust.
fn system() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in ["/bin", "/usr/bin"].map(|bin| std::fs::read_dir(bin).unwrap()) {
        for entry in entry {
            let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
            let is_rust = ["rustup", "rustc", "cargo"]
                .iter()
                .any(|rust| name == *rust);
            if !is_rust {
                // Both folders are one on many systems.
                let _ = symlink(path, folder.path().join(name));
            }
        }
    }
    folder
}

/// Whether it succeeds where `rustc --version` says this, and what it says. The control plane is
/// built already.
fn set_up(system: &Path, rustc: Option<&str>) -> (bool, String) {
    let machine = tempfile::tempdir().unwrap();
    if let Some(version) = rustc {
        let says = format!("echo 'rustc {version} (abc 2026-01-01)'");
        program(machine.path(), "rustc", &says);
        // Without clippy and rustfmt.
        let cargo = "test \"$1\" != clippy -a \"$1\" != fmt";
        program(machine.path(), "cargo", cargo);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/setup.sh");
    let path = format!("{}:{}", machine.path().display(), system.display());
    let run = Command::new(script).env("PATH", path).output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    (run.status.success(), said)
}

#[test]
fn without_rustup_a_rust_as_new_as_the_pinned_one_is_taken_and_an_older_one_refused() {
    let pinned = include_str!("../../rust-toolchain.toml");
    let pinned = pinned
        .lines()
        .find_map(|line| line.strip_prefix("channel = "));
    let pinned = pinned.unwrap().trim_matches('"');
    let system = system();
    let set_up = |rustc| set_up(system.path(), rustc);
    for version in [pinned, "1.100.0", "1.999.0-nightly", "2.0.0"] {
        let (taken, said) = set_up(Some(version));
        assert!(taken, "{version}: {said}");
        assert!(said.contains(&format!("taking rustc {version}")), "{said}");
    }
    for version in ["1.94.2", "1.9.0", "0.12.0"] {
        let (taken, said) = set_up(Some(version));
        assert!(!taken, "{version}: {said}");
        let want = format!("Rust {pinned} or newer: here is rustc {version}");
        assert!(
            said.contains(&want) && said.contains("https://rustup.rs"),
            "{said}"
        );
    }
    let (taken, said) = set_up(None);
    assert!(!taken && said.contains("install rustup"), "{said}");
}
