//! A file that is no TOML: where it stops being that, and why.

use std::io::{self, Write};
use std::path::Path;

use super::Program;
use crate::output::{BOLD, RED, harmless};

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

impl Syntax {
    pub(super) fn of(text: &str, error: &toml::de::Error) -> Self {
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

    /// In the form of the other faults, with the place.
    pub(super) fn json(&self, file: &Path, program: Option<Program>) -> String {
        serde_json::json!({
            "file": file.to_string_lossy(),
            "program": program.map(Program::name),
            "faults": [{
                "key": "",
                "value": self.text,
                "allowed": self.error,
                "line": self.line,
                "column": self.column,
            }],
        })
        .to_string()
    }

    /// For people: the place, the reason, and the line with a mark below it.
    pub(super) fn print(&self, out: &mut impl Write, file: &Path) -> io::Result<()> {
        let path = file.display().to_string();
        writeln!(
            out,
            "{BOLD}{}{BOLD:#}: {RED}no TOML{RED:#}",
            harmless(&path)
        )?;
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
            let found = Syntax::of(text, &text.parse::<toml::Table>().unwrap_err());
            let want = (line, column, shown.to_owned());
            assert_eq!((found.line, found.column, found.text), want, "{text:?}");
            assert!(!found.error.is_empty(), "{text:?}");
        }
    }
}
