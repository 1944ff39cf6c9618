//! What all subcommands share about their output: format, colours, tables, exit codes, and text of
//! others made harmless.

use std::io::{self, Write};
use std::process::ExitCode;

use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;
pub use anstyle::Style;
use health_event::text::steers;
pub use health_event::text::{chain, counted, harmless};

/// For people: standard output without colours when it is no terminal or `NO_COLOR` is set.
pub type Stdout = AutoStream<io::StdoutLock<'static>>;

/// Flags of every subcommand.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Options {
    /// How to print: text (for people) or json (one object a line).
    #[arg(
        long,
        value_enum,
        default_value_t = Format::Text,
        hide_possible_values = true,
        global = true,
        help_heading = HEADING
    )]
    pub format: Format,
    /// When to use colours: auto (on a terminal, unless NO_COLOR is set), always or never.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t = Color::Auto,
        hide_possible_values = true,
        global = true,
        help_heading = HEADING
    )]
    pub color: Color,
}

const HEADING: &str = "How to print";

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Also into a pipe.
    Always,
    /// Not at all.
    Never,
}

impl Options {
    /// Standard output as these options want it.
    pub fn stdout(self) -> Stdout {
        let stdout = io::stdout().lock();
        match self.color {
            Color::Auto => AutoStream::auto(stdout),
            Color::Always => AutoStream::new(stdout, ColorChoice::Always),
            Color::Never => AutoStream::new(stdout, ColorChoice::Never),
        }
    }
}

/// A reader that went away (`| head`) has seen what it wanted.
///
/// # Errors
/// Any other reason why the output could not be written.
pub fn unless_gone(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Done, nothing wrong.
    Clean = 0,
    /// Done; faults were found, or the object asked for is unhealthy.
    Unhealthy = 1,
    /// Usage or input/output error; what was printed may be incomplete.
    Error = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Prints an error and what caused it, on one line.
pub fn report_error(error: &(dyn std::error::Error + 'static)) {
    notice("error", RED, &chain(error));
}

/// Prints JSON of others on one line: what would steer a terminal is escaped, so that it stays the
/// same JSON. (Inside a text JSON itself escapes only what lies below 32.)
///
/// # Errors
/// If `out` can't be written.
pub fn json_line(out: &mut impl Write, json: &str) -> io::Result<()> {
    let mut rest = json;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| steers(*c)) {
        out.write_all(&rest.as_bytes()[..at])?;
        if matches!(c, '\n' | '\r' | '\t') {
            // Between values; inside a text JSON allows none of them.
            out.write_all(b" ")?;
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        rest = &rest[at + c.len_utf8()..];
    }
    writeln!(out, "{rest}")
}

/// Prints something that a person should know beside the output.
pub fn report_warning(text: &str) {
    notice("warning", YELLOW, text);
}

fn notice(word: &str, style: Style, text: &str) {
    let mut stderr = AutoStream::auto(io::stderr().lock());
    // Nobody is left to tell if standard error is gone.
    let _ = writeln!(stderr, "{style}{word}{style:#}: {}", harmless(text));
}

/// For what is broken.
pub const RED: Style = AnsiColor::Red.on_default().bold();
/// For what is odd.
pub const YELLOW: Style = AnsiColor::Yellow.on_default();
/// For what is well.
pub const GREEN: Style = AnsiColor::Green.on_default();
/// For headings and names.
pub const BOLD: Style = Style::new().bold();
/// For what is beside the point.
pub const DIM: Style = Style::new().dimmed();
/// For everything else.
pub const PLAIN: Style = Style::new();

/// One cell: its text and how it looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell; the text is made harmless.
    pub fn new(text: impl AsRef<str>, style: Style) -> Self {
        let text = harmless(text.as_ref()).into_owned();
        Self { text, style }
    }
}

/// A table in the way of kubectl: upper-case headings, columns as wide as their widest cell, two
/// blanks between them. A row may have a note below it.
#[derive(Debug, Clone, Default)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<(Vec<Cell>, String)>,
}

impl Table {
    /// An empty table.
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a note that is printed below it unless it is empty.
    pub fn row(&mut self, cells: Vec<Cell>, note: &str) {
        self.rows.push((cells, harmless(note).into_owned()));
    }

    /// Prints it.
    ///
    /// # Errors
    /// If `out` can't be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column));
            let widest = cells.map(|cell| cell.text.chars().count()).max();
            widest.unwrap_or(0).max(self.headings[column].len())
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let headings: Vec<Cell> = self.headings.iter().map(|h| Cell::new(h, DIM)).collect();
        print_row(out, &headings, &widths)?;
        for (cells, note) in &self.rows {
            print_row(out, cells, &widths)?;
            if !note.is_empty() {
                writeln!(out, "  {DIM}{note}{DIM:#}")?;
            }
        }
        Ok(())
    }
}

fn print_row(out: &mut impl Write, cells: &[Cell], widths: &[usize]) -> io::Result<()> {
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let style = cell.style;
        write!(out, "{style}{}{style:#}", cell.text)?;
        if index + 1 < cells.len() {
            let gap = width - cell.text.chars().count() + 2;
            write!(out, "{:gap$}", "")?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_others_stays_the_same_json_and_steers_nothing() {
        let json = "{\"a\":\n\t\"x\u{9b}2J\u{202e}\u{7f}\u{e0041}ü\",\r\"b\":1}";
        let mut out = Vec::new();
        json_line(&mut out, json).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(!out.trim_end().contains(steers), "{out:?}");
        let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
        assert_eq!(value(&out), value(json));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "LONGER"]);
        table.row(
            vec![Cell::new("ünicode\u{1b}", RED), Cell::new("x", PLAIN)],
            "a note",
        );
        table.row(vec![Cell::new("y", PLAIN), Cell::new("z", PLAIN)], "");
        let mut out = anstream::StripStream::new(Vec::new());
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert_eq!(text, "A        LONGER\nünicode  x\n  a note\ny        z\n");
    }
}
