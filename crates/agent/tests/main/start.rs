//! What the agent says when it can't start, by its last words.

use std::process::Command;

/// Name and value of each variable.
type Variables<'a> = &'a [(&'a str, &'a str)];

/// Exit code, standard output, standard error.
fn ran(arguments: &[&str], variables: Variables<'_>) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_warden-agent"))
        .env_clear()
        .envs(variables.iter().copied())
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_fault_is_named_by_the_flag_or_the_variable_that_was_given() {
    let table: [(&[&str], Variables<'_>, &str); 5] = [
        (
            &["--node-name", "a b"],
            &[],
            "the configuration has 1 fault:\n  --node-name = \"a b\"; allowed: a DNS subdomain",
        ),
        (
            &[],
            &[("NODE_NAME", "a b")],
            "has 1 fault:\n  NODE_NAME = \"a b\"; allowed: a DNS subdomain",
        ),
        (
            &["--node-name", "n", "--kernel-log", "journal"],
            &[("WARDEN_LOG", "=,=")],
            "has 2 faults:\n  --kernel-log = \"journal\"; allowed: kmsg, pipe:/PATH or off\n  \
             WARDEN_LOG = \"=,=\"; allowed: a level",
        ),
        (
            &["--controller", "http://10.0.0.1:1"],
            &[("NODE_NAME", "n")],
            "has 1 fault:\n  --controller = \"http://10.0.0.1:1/\"; allowed: https://HOST:PORT",
        ),
        // Empty: as if it were not there.
        (
            &[],
            &[("NODE_NAME", ""), ("WARDEN_LOG", "")],
            "has 1 fault:\n  node_name (--node-name, NODE_NAME) is missing",
        ),
    ];
    for (arguments, variables, want) in table {
        let (code, out, err) = ran(arguments, variables);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(err.contains(want), "{want}\nis not in\n{err}");
    }
}

#[test]
fn wrong_usage_shows_no_variable_as_required() {
    let (code, _, err) = ran(&["--absent"], &[("NODE_NAME", "n")]);
    assert_eq!(code, Some(2));
    assert!(err.contains("\nUsage: warden-agent [OPTIONS]\n"), "{err}");
}

#[test]
fn a_start_error_tells_its_cause_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let state = file.join("state");
    let flags = ["--node-name", "n", "--kernel-log", "off", "--socket", "off"];
    let arguments = [&flags[..], &["--state-dir", state.to_str().unwrap()]].concat();
    let (code, _, err) = ran(&arguments, &[]);
    assert_eq!(code, Some(1), "{err}");
    let last = err.lines().last().unwrap();
    assert!(last.starts_with("warden-agent: spool folder "), "{err}");
    assert_eq!(last.matches("Not a directory").count(), 1, "{last}");
    let absent = folder.path().join("absent.toml");
    let (code, _, err) = ran(&["--config", absent.to_str().unwrap()], &[]);
    assert_eq!(code, Some(2), "{err}");
    assert_eq!(err.matches("No such file").count(), 1, "{err}");
}
