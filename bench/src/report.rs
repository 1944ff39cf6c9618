//! Rows: what was measured, beside its raw limit and its goal.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::facts::Facts;

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// What was measured.
    pub what: String,
    /// The same without Warden, in the same run; empty where there is no such thing.
    pub raw: String,
    /// What came out.
    pub measured: String,
    /// What was to be reached.
    pub goal: String,
    /// Whether it was; none for a figure that has no goal.
    pub met: Option<bool>,
    /// What a reader must know to judge the figure.
    pub note: String,
}

impl Row {
    /// A row for a measurement that did not come about: it counts as missed.
    pub(crate) fn failed(what: &str, error: &anyhow::Error) -> Self {
        Self {
            what: what.to_owned(),
            raw: String::new(),
            measured: "did not run".to_owned(),
            goal: String::new(),
            met: Some(false),
            note: format!("{error:#}"),
        }
    }

    fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "–",
        }
    }
}

/// The table for a terminal, and after it the notes.
pub(crate) fn text(rows: &[Row]) -> String {
    let head = ["what", "raw limit", "measured", "goal", "met"];
    let cells: Vec<[&str; 5]> = rows
        .iter()
        .map(|r| [r.what.as_str(), &r.raw, &r.measured, &r.goal, r.verdict()])
        .collect();
    let widths: Vec<usize> = (0..5)
        .map(|column| {
            let longest = cells.iter().map(|c| c[column].chars().count()).max();
            longest.unwrap_or(0).max(head[column].len())
        })
        .collect();
    let mut table = String::new();
    for line in std::iter::once(&head).chain(&cells) {
        for (cell, width) in line.iter().zip(&widths) {
            let padding = width - cell.chars().count();
            table.push_str(cell);
            table.extend(std::iter::repeat_n(' ', padding + 2));
        }
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        // Writing into a string never fails.
        let _ = writeln!(table, "  {}: {}", row.what, row.note);
    }
    table
}

/// The same as a file for `bench/results/`.
pub(crate) fn markdown(rows: &[Row], facts: &Facts, command: &str) -> String {
    let mut page = format!("# Benchmark of {} at {}\n\n", facts.date, facts.commit);
    let _ = writeln!(page, "`{command}`\n");
    for (name, value) in &facts.machine {
        let _ = writeln!(page, "- {name}: {value}");
    }
    page.push_str("\n| what | raw limit of the same run | measured | goal | met |\n");
    page.push_str("|---|---|---|---|---|\n");
    for row in rows {
        let cells = [&row.what, &row.raw, &row.measured, &row.goal];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(page, "| {} | {} |", cells.join(" | "), row.verdict());
    }
    page.push('\n');
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        let _ = writeln!(page, "- **{}**: {}", row.what, row.note);
    }
    page
}

/// Writes the page beside the earlier ones and answers its path.
///
/// # Errors
/// The folder can't be written.
pub(crate) fn keep(page: &str, facts: &Facts, folder: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join(format!("{}-{}.md", facts.date, facts.commit));
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_that_did_not_run_counts_as_missed_and_says_why() {
        let row = Row::failed("appends", &anyhow::anyhow!("no disk"));
        let text = text(&[row]);
        assert!(text.contains("did not run"), "{text}");
        assert!(text.contains("NO"), "{text}");
        assert!(text.contains("appends: no disk"), "{text}");
    }
}
