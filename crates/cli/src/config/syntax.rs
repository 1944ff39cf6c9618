//! A file that is no TOML: where it stops being that, and why.

use std::io::{self, Write};
use std::path::Path;

use toml::de::DeTable;

use super::Program;
use crate::output::{BOLD, RED, harmless};

/// Faults that are told of one file.
const MOST: usize = 50;
/// Characters of a line that are shown.
const SHOWN: usize = 100;

/// Where a file stops being TOML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Syntax {
    /// From 1.
    line: usize,
    /// From 1, in characters.
    column: usize,
    /// What is wrong there, and what would be right.
    error: String,
    /// The line as it stands in the file.
    text: String,
}

/// Every line where a text stops being TOML, a key that stands twice included, in the order of the
/// file; at most [`MOST`]. What follows on a line is mostly a consequence.
pub(super) fn faults(text: &str) -> Vec<Syntax> {
    let (_, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    // Each costs a walk through the text.
    let first = errors.iter().take(2 * MOST);
    let mut found: Vec<Syntax> = first.map(|error| Syntax::of(text, error)).collect();
    found.dedup_by_key(|fault| fault.line);
    found.truncate(MOST);
    found
}

/// The keys at the top of a text that is TOML but for numbers which can't be held, each without its
/// value: by them it is told whose it is.
pub(super) fn keys(text: &str) -> toml::Table {
    let (table, _) = DeTable::parse_recoverable(text);
    let keys = table.get_ref().keys();
    keys.map(|key| (key.get_ref().to_string(), toml::Value::from("")))
        .collect()
}

/// In the form of the other faults, each with its place.
pub(super) fn json(faults: &[Syntax], file: &Path, program: Option<Program>) -> String {
    let fault = |fault: &Syntax| {
        serde_json::json!({
            "key": "",
            "value": fault.text,
            "allowed": fault.error,
            "line": fault.line,
            "column": fault.column,
        })
    };
    serde_json::json!({
        "file": file.to_string_lossy(),
        "program": program.map(Program::name),
        "faults": faults.iter().map(fault).collect::<Vec<_>>(),
        "warnings": [],
    })
    .to_string()
}

/// For people.
pub(super) fn print(faults: &[Syntax], out: &mut impl Write, file: &Path) -> io::Result<()> {
    let path = file.display().to_string();
    let path = harmless(&path);
    writeln!(out, "{BOLD}{path}{BOLD:#}: {RED}no TOML{RED:#}")?;
    faults.iter().try_for_each(|fault| fault.print(out))
}

impl Syntax {
    fn of(text: &str, error: &toml::de::Error) -> Self {
        let at = error
            .span()
            .map_or(0, |span| text.floor_char_boundary(span.start));
        let before = &text[..at];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            error: error.message().to_owned(),
            text: text[start..].lines().next().unwrap_or_default().to_owned(),
        }
    }

    /// The place, the reason, and the line with a mark below it.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self {
            line,
            column,
            error,
            text,
        } = self;
        writeln!(
            out,
            "  {BOLD}line {line}, column {column}{BOLD:#}: {}",
            harmless(error)
        )?;
        let (number, text): (String, String) =
            (line.to_string(), text.chars().take(SHOWN).collect());
        writeln!(out, "    {number} | {}", harmless(&text))?;
        if *column <= SHOWN {
            let indent = number.len() + 3 + column - 1;
            writeln!(out, "    {:indent$}{RED}^{RED:#}", "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syntax_error_is_placed() {
        let table = [
            ("a = 1\n[b\nc = 1", (2, 3, "[b")),
            ("= 1", (1, 1, "= 1")),
            ("a = 'ü'\nä = 1", (2, 1, "ä = 1")),
            ("x = 'ü' 1", (1, 9, "x = 'ü' 1")),
            ("a = 1\na = 2\n", (2, 1, "a = 2")),
        ];
        for (text, (line, column, shown)) in table {
            let found = faults(text).swap_remove(0);
            let want = (line, column, shown.to_owned());
            assert_eq!((found.line, found.column, found.text), want, "{text:?}");
            assert!(!found.error.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_text_has_faults_exactly_if_the_programs_would_refuse_it() {
        let table = [
            ("", 0),
            ("a = 1\n[b]\nc = 'x'", 0),
            ("a = 1\na = 2\nb = 1\nb = 2\n[c]\n[c]\nd = 1\nd = 1", 4),
            ("= no key, x = \na = {x = 1, x = 2}\na.y = 1", 3),
        ];
        for (text, want) in table {
            let found = faults(text);
            assert_eq!(found.len(), want, "{text:?}: {found:?}");
            assert_eq!(text.parse::<toml::Table>().is_ok(), want == 0, "{text:?}");
        }
        assert_eq!(faults(&"a = 1\n".repeat(1_000)).len(), MOST);
    }
}
