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
    let want = r#"{"faults":[{"allowed":"enforce, audit or off","key":"ingest.mode","value":"on"},{"allowed":"a DNS subdomain: the node's name","key":"node_name","value":null}],"file":"a.toml","program":"warden-controller","warnings":[]}"#;
    assert_eq!((json.code, json.out.trim_end()), (Some(1), want));
}

/// As the controller tells a file of node-drainer.
const THEIRS: &str = r#"
[reference]
file = "NVSentinel's node-drainer's config.toml"
taken = ["drainGPUPods", "evictionTimeoutInSeconds"]
toml = '''
profile = "drain"

[drain]
drainGPUPods = false
'''
[[reference.changed]]
key = "userNamespaces"
value = ""
why = "absent, nothing is drained there"
[[reference.left]]
key = "partialDrainEnabled"
value = "true"
why = "partial drains are not part of this version"
"#;

#[test]
fn a_file_of_the_reference_is_told_key_by_key_with_the_same_for_warden() {
    let folder = folder();
    answering(folder.path(), "warden-controller", THEIRS, 0);
    let text = "evictionTimeoutInSeconds = '60'\npartialDrainEnabled = true";
    let ran = check(folder.path(), text, Path::new("/"), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    insta::assert_snapshot!(ran.out);
    let json = check(folder.path(), text, Path::new("/"), &["--format", "json"]);
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(told["reference"]["left"][0]["key"], "partialDrainEnabled");
    assert_eq!(
        (json.code, &told["faults"]),
        (Some(0), &serde_json::json!([]))
    );
    // YAML is no TOML, and its faults as TOML would help nobody.
    let yaml = "[reference]\nfile = \"NVSentinel's janitor's configuration\"\ntaken = []\nchanged = []\n\
                left = []\ntoml = ''\n[[fault]]\nkey = ''\nvalue = 'YAML'\nallowed = 'JSON'\n";
    std::fs::write(folder.path().join("warden-controller.out"), yaml).unwrap();
    std::fs::write(folder.path().join("warden-controller.code"), "2").unwrap();
    let ran = check(
        folder.path(),
        "global:\n  timeout: 25m\n",
        Path::new("/"),
        &[],
    );
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.out.contains("allowed: JSON"), "{}", ran.out);
}

const VALUES: &str = r#"
[[fault]]
key = "a"
value = 'plain'
allowed = "x"

[[fault]]
key = "b"
value = '["no-slash", 5]'
allowed = "x"

[[fault]]
key = "c"
value = '-1'
allowed = "x"

[[fault]]
key = "d"
value = '"cut…'
allowed = "x"
"#;

#[test]
fn a_value_is_quoted_once_whichever_way_a_program_tells_it() {
    let folder = folder();
    answering(folder.path(), "warden-agent", VALUES, 2);
    let ran = check(folder.path(), "[kernel_log]", Path::new("/"), &[]);
    for line in [
        "a = \"plain\"",
        "b = [\"no-slash\", 5]",
        "c = -1",
        "d = \"cut…",
    ] {
        assert!(ran.out.contains(&format!("  {line}\n")), "{}", ran.out);
    }
    let flags = ["--format", "json"];
    let json = check(folder.path(), "[kernel_log]", Path::new("/"), &flags);
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let values: Vec<&serde_json::Value> = (0..4).map(|n| &told["faults"][n]["value"]).collect();
    let want = serde_json::json!(["plain", ["no-slash", 5], -1, "\"cut…"]);
    assert_eq!(serde_json::json!(values), want);
}

#[test]
fn a_warning_is_told_and_is_no_fault() {
    let folder = folder();
    let warning = "[[warning]]\nkey = \"quarantine.rule-sets[0].match.all[0].expression\"\n\
                   value = '\"true || event.isFatal == 1\"'\nallowed = \"write true or false\"\n";
    answering(folder.path(), "warden-controller", warning, 0);
    let ran = check(folder.path(), "[quarantine]", Path::new("/"), &[]);
    let want = "a.toml (warden-controller): nothing is wrong\n  1 warning\n  \
                quarantine.rule-sets[0].match.all[0].expression = \"true || event.isFatal == 1\"\n    \
                better: write true or false\n";
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), want));
    let flags = ["--format", "json"];
    let json = check(folder.path(), "[quarantine]", Path::new("/"), &flags);
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json.code, Some(0));
    assert_eq!(told["faults"], serde_json::json!([]));
    assert_eq!(told["warnings"][0]["value"], "true || event.isFatal == 1");
}

#[test]
fn every_key_that_stands_twice_is_told_at_once() {
    let folder = folder();
    let text = "profile = 'x'\nprofile = 'y'\n[store]\npath = 'a'\npath = 'b'\n[store]\n";
    let ran = check(folder.path(), text, Path::new("/"), &[]);
    assert_eq!(ran.code, Some(1));
    for place in [
        "line 2, column 1: duplicate key",
        "line 5, column 1: duplicate key",
    ] {
        assert!(ran.out.contains(place), "{}", ran.out);
    }
    assert!(ran.out.contains("line 6, column "), "{}", ran.out);
    let flags = ["--format", "json"];
    let json = check(folder.path(), text, Path::new("/"), &flags);
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(told["faults"].as_array().unwrap().len(), 3, "{told}");
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
fn a_file_that_is_no_toml_is_told_by_line_and_column_without_asking_a_program() {
    let folder = folder();
    let table = [
        (
            "profile = 'x'\n[quarantine\nfoo = 1",
            "line 2, column 12: unclosed table, expected `]`",
            "    2 | [quarantine\n                   ^\n",
        ),
        (
            "= no key",
            "line 1, column 1: ",
            "    1 | = no key\n        ^\n",
        ),
        (
            "a = 1\n\na = 2",
            "line 3, column 1: duplicate key",
            "    3 | a = 2\n        ^\n",
        ),
        (
            "a = 'ü' b",
            "line 1, column 9: ",
            "    1 | a = 'ü' b\n                ^\n",
        ),
        (
            "profile = cordon",
            "line 1, column 11: ",
            "    1 | profile = cordon\n                  ^\n",
        ),
    ];
    for (text, place, line) in table {
        let ran = check(folder.path(), text, Path::new("/"), &[]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""), "{text:?}");
        let said = format!("a.toml: no TOML\n  {place}");
        assert!(
            ran.out.starts_with(&said) && ran.out.ends_with(line),
            "{}",
            ran.out
        );
        let json = check(folder.path(), text, Path::new("/"), &["--format", "json"]);
        let object: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        let (line, column) = (&object["faults"][0]["line"], &object["faults"][0]["column"]);
        assert!(
            place.starts_with(&format!("line {line}, column {column}: ")),
            "{}",
            json.out
        );
    }
}

/// It is TOML: the program knows which key it is and what is allowed there.
#[test]
fn a_number_that_64_bits_do_not_hold_is_told_by_the_program_and_never_passed_over() {
    let folder = folder();
    let fault = "[[fault]]\nkey = 'quarantine.workers'\nvalue = '99999999999999999999'\n\
                 allowed = 'a number from 1 to 1024 (line 2, column 11)'\n";
    answering(folder.path(), "warden-controller", fault, 2);
    answering(folder.path(), "warden-agent", "", 0);
    let text = "[quarantine]\nworkers = 99999999999999999999";
    let ran = check(folder.path(), text, Path::new("/"), &[]);
    let want = "a.toml (warden-controller): 1 fault\n  quarantine.workers = 99999999999999999999\n    \
                allowed: a number from 1 to 1024 (line 2, column 11)\n";
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (Some(1), want, "")
    );
    // An older program that reads over it.
    let text = "[socket]\nx = 99999999999999999999";
    let ran = check(folder.path(), text, Path::new("/"), &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    let want = "allowed: numbers from -9223372036854775808 to 9223372036854775807";
    assert!(ran.out.contains(want), "{}", ran.out);
}

#[test]
fn a_file_without_keys_that_tell_is_checked_by_both_programs() {
    let folder = folder();
    answering(folder.path(), "warden-controller", "", 0);
    answering(folder.path(), "warden-agent", FAULTS, 2);
    let ran = check(folder.path(), "[log]\nformat = 'x'", Path::new("/"), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
    assert!(
        ran.out.starts_with(
            "a.toml (warden-controller): nothing is wrong\na.toml (warden-agent): 2 faults\n"
        ),
        "{}",
        ran.out
    );
    let ran = check(
        folder.path(),
        "",
        Path::new("/"),
        &["--program", "controller"],
    );
    let want = "a.toml (warden-controller): nothing is wrong; no key is set, so that all have their \
                defaults\n";
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), want));
    let json = check(
        folder.path(),
        "# nothing",
        Path::new("/"),
        &["--format", "json"],
    );
    assert_eq!((json.code, json.out.lines().count()), (Some(1), 2));
}

#[test]
fn what_one_program_can_not_check_since_it_is_not_here_is_said() {
    let folder = folder();
    answering(folder.path(), "warden-controller", "", 0);
    let ran = check(folder.path(), "", Path::new("/"), &[]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.out
            .starts_with("a.toml (warden-controller): nothing is wrong; no key"),
        "{}",
        ran.out
    );
    assert!(
        ran.err
            .starts_with("warning: warden-agent checks its own configuration"),
        "{}",
        ran.err
    );
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
    std::fs::write(folder.path().join("latin.toml"), b"a = '\xfc'").unwrap();
    let latin = folder.path().join("latin.toml");
    for (path, want) in [
        (
            latin.to_str().unwrap(),
            "it is no UTF-8 text from byte 5 on",
        ),
        ("/", "Is a directory"),
        ("/dev/zero", "it has more than 1048576 bytes"),
    ] {
        let ran = program().args(["config", "check", path]).output().unwrap();
        let ran = Ran::from(ran);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{path}");
        assert!(ran.err.contains(want), "{}", ran.err);
    }
}

#[test]
fn what_a_node_costs_is_told_where_nothing_is_wrong() {
    let folder = folder();
    let told = r#"acts = "writes node conditions and Events; cordons and taints nodes"
[node_cache]
bytes_per_node = 2900
typical_node = "63 labels, 7 annotations"
labels = "all"
annotations = "15 by name"
fields = ["spec.podCIDR", "status.nodeInfo.kernelVersion"]
"#;
    answering(folder.path(), "warden-controller", told, 0);
    let ran = check(folder.path(), "profile = 'cordon'", Path::new("/"), &[]);
    let want = "a.toml (warden-controller): nothing is wrong\n  \
                memory: 2.8 KiB of the controller for each node of the cluster, 2.7 MiB at 1,000 nodes\n    \
                counted for a node with 63 labels, 7 annotations; it keeps of that what rule sets and \
                modules read: all labels, 15 annotations by their names, and for the rules \
                spec.podCIDR, status.nodeInfo.kernelVersion\n  \
                what acts: writes node conditions and Events; cordons and taints nodes\n";
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), want));
    let json = check(
        folder.path(),
        "profile = 'cordon'",
        Path::new("/"),
        &["--format", "json"],
    );
    let object: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(object["node_cache"]["bytes_per_node"], 2900);
    assert_eq!(
        object["acts"],
        "writes node conditions and Events; cordons and taints nodes"
    );
    assert_eq!(object["node_cache"]["fields"][0], "spec.podCIDR");
}
