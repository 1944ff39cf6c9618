//! Texts name only options that exist: whoever reads one has to find the option.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What looks like an option in our texts and is a file's name.
const FILES: [&str; 10] = [
    "spool.id",
    "spool.db",
    "spool.db-wal",
    "spool.db-shm",
    "spool.damaged",
    "spool.damaged-wal",
    "spool.damaged-shm",
    "store.db",
    "store.db-wal",
    "store.lock",
];
/// Names of the store's own that are none for people.
const INTERNAL: [&str; 3] = [
    "store.instance",
    "store.commit.before",
    "store.commit.after",
];

/// Keys of both programs, as the generated page lists them.
fn keys(root: &Path) -> BTreeSet<String> {
    let page = std::fs::read_to_string(root.join("docs/configuration.md")).unwrap();
    let first = page.lines().filter_map(|line| line.strip_prefix("| "));
    first
        .filter_map(|line| line.split(" |").next())
        .map(str::to_owned)
        .collect()
}

/// The string literals of a source file, comments left out.
fn literals(source: &str) -> String {
    let code = source.lines().filter(|l| !l.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n").replace("'\"'", "");
    let (mut text, mut inside, mut escaped) = (String::new(), false, false);
    for c in code.chars() {
        match c {
            '"' if !escaped => {
                inside = !inside;
                text.push('\n');
            }
            c if inside => text.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    text
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            found.push(path);
        }
    }
}

#[test]
fn texts_name_only_options_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let keys = keys(&root);
    assert!(keys.contains("socket.uids") && keys.contains("ingest.mode"));
    let sections: BTreeSet<&str> = keys
        .iter()
        .filter_map(|k| k.split_once('.'))
        .map(|k| k.0)
        .collect();
    let mut texts = Vec::new();
    for part in ["agent", "event-store", "wire", "telemetry"] {
        let mut sources = Vec::new();
        files(
            &root.join("crates").join(part).join("src"),
            "rs",
            &mut sources,
        );
        texts.extend(sources.into_iter().map(|path| {
            let text = literals(&std::fs::read_to_string(&path).unwrap());
            (path, text)
        }));
    }
    let mut pages = Vec::new();
    files(&root.join("docs"), "md", &mut pages);
    texts.extend(pages.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    }));
    let in_a_word = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let mut seen = 0;
    for (path, text) in &texts {
        for word in text
            .split(|c| !in_a_word(c))
            .map(|word| word.trim_matches('.'))
        {
            let section = word.split_once('.').map(|(section, _)| section);
            if !section.is_some_and(|section| sections.contains(section)) {
                continue;
            }
            let internal = FILES.contains(&word)
                || INTERNAL.contains(&word)
                || agent::crash::POINTS.contains(&word);
            // A whole section, or the reference's list of rule sets.
            let part = keys.iter().any(|key| key.starts_with(&format!("{word}.")))
                || word == "quarantine.rule-sets";
            let known = keys.contains(word) || internal || part;
            assert!(known, "{}: there is no option {word}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "the texts were read: {seen}");
}
