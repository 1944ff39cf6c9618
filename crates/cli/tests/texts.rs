//! Whatever the texts name exists: commands, flags, marks of nodes (`xtask check` looks at options).
//! And help is read as a whole, since it is what a newcomer reads first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Command;
use k8s_api::names;

use crate::kit::{Ran, program, warden};

// Documentation of arguments is help, and every other comment is not.
#[path = "../../../xtask/src/literals.rs"]
mod literals;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every string literal of the sources, one a line, with its file. Comments are left out.
fn literals() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let folders = ["cli/src", "controller/src/api", "decide/src/quarantine"];
    for folder in folders {
        sources(&root().join("crates").join(folder), &mut files);
    }
    files.push(root().join("crates/controller/src/requests.rs"));
    files.push(root().join("crates/controller/src/quarantine/asked.rs"));
    files
        .into_iter()
        .map(|path| {
            let source = std::fs::read_to_string(&path).unwrap();
            (path, literals::of(&source))
        })
        .collect()
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}

/// What the texts of this program say: its literals and its help.
fn texts() -> Vec<(PathBuf, String)> {
    let mut texts = literals();
    texts.push((PathBuf::from("--help"), help()));
    texts
}

fn words<'a>(text: &'a str, more: &'static str) -> impl Iterator<Item = &'a str> {
    text.split(move |c: char| !c.is_ascii_alphanumeric() && !more.contains(c))
}

#[test]
fn every_command_and_flag_that_a_text_names_exists() {
    let command = cli::command();
    let commands: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
    let mut flags = BTreeSet::new();
    flags_of(&command, &mut flags);
    // Of kubectl, journalctl and Warden's other programs.
    flags.extend(
        [
            "field-selector",
            "replicas",
            "ignore-daemonsets",
            "delete-emptydir-data",
            "grace-period",
            "force",
            "file",
            "insecure-local",
            "check-config",
        ]
        .map(str::to_owned),
    );
    let mut seen = (0, 0);
    for (path, text) in texts() {
        for (at, name) in text.match_indices("warden ") {
            let before = text[..at].chars().next_back();
            let is_other = before.is_some_and(|c| c.is_alphanumeric() || "-/.".contains(c));
            // `kubectl -n warden …` names the namespace.
            if is_other || text[..at].ends_with("-n ") {
                continue;
            }
            let rest = &text[at + name.len()..];
            let word: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
            if !word.is_empty() {
                assert!(
                    commands.contains(word.as_str()),
                    "{}: there is no `warden {word}`",
                    path.display()
                );
                seen.0 += 1;
            }
        }
        for word in words(&text, "-").filter_map(|word| word.strip_prefix("--")) {
            assert!(
                word.is_empty() || flags.contains(word),
                "{}: there is no --{word}",
                path.display()
            );
            seen.1 += 1;
        }
    }
    assert!(seen.0 > 20 && seen.1 > 20, "the texts were read: {seen:?}");
}

fn flags_of(command: &Command, flags: &mut BTreeSet<String>) {
    let longs = command
        .get_arguments()
        .filter_map(|argument| argument.get_long());
    flags.extend(
        longs
            .map(str::to_owned)
            .chain(["help".to_owned(), "version".to_owned()]),
    );
    for inner in command.get_subcommands() {
        flags_of(inner, flags);
    }
}

#[test]
fn every_mark_of_a_node_that_a_text_names_is_declared() {
    let declared: BTreeSet<&str> = names::ALL.iter().map(|name| name.text).collect();
    let mut seen = 0;
    for (path, text) in texts() {
        for word in words(&text, "_./-").map(|word| word.trim_end_matches('-')) {
            if word.contains("nvidia.com/") && !word.ends_with('/') {
                assert!(
                    declared.contains(word),
                    "{}: nothing is called {word}",
                    path.display()
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "the texts were read");
    // Spelled with the prefix, which only `health_event` and `k8s-api` spell.
    assert_eq!(
        format!("{}pause", health_event::keys::PREFIX),
        names::PAUSE.text
    );
    let run = cli::command();
    let inject = run.find_subcommand("inject").unwrap();
    let check = inject.get_after_help().unwrap().to_string();
    let known = health_event::checks::CHECKS
        .iter()
        .any(|known| check.contains(known.name));
    assert!(known, "the example's check is one of ours: {check}");
}

/// The help of every command, in the width of a narrow window.
fn help() -> String {
    let mut text = String::new();
    let mut all = vec![vec![]];
    let command = cli::command();
    for outer in command.get_subcommands() {
        all.push(vec![outer.get_name()]);
        all.extend(
            outer
                .get_subcommands()
                .map(|inner| vec![outer.get_name(), inner.get_name()]),
        );
    }
    for path in all {
        let ran = warden(&[&path[..], &["--help"]].concat());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{path:?}");
        text = format!(
            "{text}$ warden {}\n{}\n",
            [&path[..], &["--help"]].concat().join(" "),
            ran.out
        );
    }
    text
}

#[test]
fn an_error_shows_the_usage_of_the_help_whatever_the_environment_holds() {
    let command = cli::command();
    let mut paths: Vec<Vec<&str>> = vec![vec![]];
    for outer in command.get_subcommands() {
        paths.push(vec![outer.get_name()]);
        let inner = outer.get_subcommands();
        paths.extend(inner.map(|inner| vec![outer.get_name(), inner.get_name()]));
    }
    let usage = |ran: &Ran| {
        let text = format!("{}{}", ran.out, ran.err);
        let line = text.lines().find(|line| line.starts_with("Usage: "));
        line.map(str::to_owned).unwrap_or_default()
    };
    for path in paths {
        let run = |last: &str| {
            let mut command = program();
            command
                .env("WARDEN_SERVER", "http://127.0.0.1:9")
                .env("WARDEN_TOKEN_FILE", "/t")
                .env("WARDEN_CA_FILE", "/c");
            Ran::from(command.args(&path).arg(last).output().unwrap())
        };
        let (help, error) = (run("--help"), run("--no-such-flag"));
        assert_eq!((help.code, error.code), (Some(0), Some(2)), "{path:?}");
        assert!(!usage(&help).is_empty(), "{path:?}");
        assert_eq!(usage(&error), usage(&help), "{path:?}");
    }
    let hold = usage(&warden(&["hold"]));
    assert_eq!(hold, "Usage: warden hold [OPTIONS] --reason <TEXT> <NODE>");
}

#[test]
fn help_is_as_it_was_read() {
    insta::assert_snapshot!(help());
}

#[test]
fn help_says_the_exit_codes_of_every_command() {
    let command = cli::command();
    let ends = |command: &Command| {
        command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    for outer in command.get_subcommands() {
        let inner: Vec<&Command> = outer.get_subcommands().collect();
        let says = |command: &Command| ends(command).contains("Exit codes: 0 ");
        let all = says(outer) || (!inner.is_empty() && inner.iter().all(|inner| says(inner)));
        assert!(all, "{} does not say its exit codes", outer.get_name());
    }
}
