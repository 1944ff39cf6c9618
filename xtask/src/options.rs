//! Options that texts name exist: whoever reads a message or a page has to find the option.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::literals;

/// What looks like an option in our texts and is none: files, the store's own keys, an API group.
const OTHERS: [&str; 16] = [
    "spool.id",
    "spool.db",
    "spool.db-wal",
    "spool.db-shm",
    "spool.new",
    "spool.whole",
    "spool.copy",
    "spool.damaged",
    "spool.damaged-wal",
    "spool.damaged-shm",
    "store.db",
    "store.db-wal",
    "store.lock",
    "store.instance",
    "quarantine.rule-sets",
    "janitor.dgxc.nvidia.com",
];
/// Sources whose texts people read.
const SOURCES: [&str; 8] = [
    "crates/agent/src",
    "crates/cli/src",
    "crates/controller/src",
    "crates/decide/src",
    "crates/detect/src",
    "crates/event-store/src",
    "crates/telemetry/src",
    "crates/wire/src",
];
/// Fewer than this many were read: the check reads nothing any more.
const AT_LEAST: usize = 60;

/// Words of texts that name an option that does not exist.
///
/// # Errors
/// A file can't be read, or hardly an option was seen.
pub(crate) fn unknown(root: &Path) -> anyhow::Result<Vec<String>> {
    let page = std::fs::read_to_string(root.join("docs/configuration.md"))
        .context("reading docs/configuration.md")?;
    let keys = keys(&page);
    let mut texts = Vec::new();
    for path in crate::rust_files(root)? {
        let shown = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .display()
            .to_string();
        let is_test = shown.contains("/tests") || shown.ends_with("_tests.rs");
        if !is_test && SOURCES.iter().any(|source| shown.starts_with(source)) {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {shown}"))?;
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            texts.push((shown, literals::of(product)));
        }
    }
    for entry in std::fs::read_dir(root.join("docs")).context("reading docs")? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "md") {
            let shown = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .display()
                .to_string();
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {shown}"))?;
            texts.push((shown, text));
        }
    }
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (shown, text) in &texts {
        for word in named(&keys, text) {
            seen += 1;
            if !is_known(&keys, word) {
                faults.push(format!("{shown}: there is no option {word}"));
            }
        }
    }
    ensure!(
        seen >= AT_LEAST,
        "only {seen} options were seen in the texts"
    );
    Ok(faults)
}

/// Keys of both programs, as the generated page lists them.
fn keys(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| row.split(" |").next()).collect()
}

/// Words that begin with the name of a section.
fn named<'a>(keys: &BTreeSet<&str>, text: &'a str) -> Vec<&'a str> {
    let sections: BTreeSet<&str> = keys
        .iter()
        .filter_map(|key| key.split_once('.'))
        .map(|(section, _)| section)
        .collect();
    let in_a_word = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    let words = text.split(move |c| !in_a_word(c));
    words
        .map(|word| word.trim_matches('.'))
        .filter(|word| !word.contains('/'))
        .filter(|word| {
            let section = word.split_once('.').map(|(section, _)| section);
            section.is_some_and(|section| sections.contains(section))
        })
        .collect()
}

fn is_known(keys: &BTreeSet<&str>, word: &str) -> bool {
    let section = format!("{word}.");
    keys.contains(word)
        || keys.iter().any(|key| key.starts_with(&section))
        || OTHERS.contains(&word)
        || agent::crash::POINTS.contains(&word)
        || controller::crash::POINTS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_does_not_exist_is_found_in_a_text_and_not_in_code() {
        let keys = keys("| store.path | `x` |\n| socket.uids | allowed |\n");
        let source = "let store.code = \"see store.path and store.pahts.\"; // store.comment\n";
        let text = literals::of(source);
        let named = named(&keys, &text);
        assert_eq!(named, ["store.path", "store.pahts"]);
        assert!(is_known(&keys, "store.path") && is_known(&keys, "spool.db"));
        assert!(!is_known(&keys, "store.pahts"));
    }
}
