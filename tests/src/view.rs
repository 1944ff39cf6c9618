//! What the demo shows: one line a step with its time, a spinner while something is awaited, and a
//! table at the end. On a pipe the same lines without colour and spinner.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often the spinner turns.
const SPIN: Duration = Duration::from_millis(80);

/// The demo's output.
#[derive(Debug)]
pub struct View {
    terminal: bool,
    started: Instant,
}

/// A step that is under way.
#[derive(Debug)]
pub struct Step<'a> {
    view: &'a View,
    what: String,
    started: Instant,
    spinner: Option<ProgressBar>,
}

/// Colours by meaning.
#[derive(Debug, Clone, Copy)]
pub enum Tone {
    /// Went as it should.
    Good,
    /// Something is wrong with a node.
    Bad,
    /// Explains.
    Quiet,
    /// Stands out.
    Strong,
}

impl Default for View {
    fn default() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some();
        Self {
            terminal: std::io::stdout().is_terminal() && !plain,
            started: Instant::now(),
        }
    }
}

impl View {
    /// A heading.
    pub fn title(&self, text: &str) {
        Self::line(&format!("\n{}", self.paint(Tone::Strong, text)));
    }

    /// A line of explanation.
    pub fn note(&self, text: &str) {
        Self::line(&format!("  {}", self.paint(Tone::Quiet, text)));
    }

    /// A line as it is, to be copied.
    pub fn plain(&self, text: &str) {
        Self::line(text);
    }

    /// A line of another program's output.
    pub fn quote(&self, text: &str) {
        Self::line(&format!("  {} {text}", self.paint(Tone::Quiet, "│")));
    }

    /// All nodes in one line: a mark each, and the names of those that are out.
    pub fn fleet(&self, nodes: &[(String, bool)]) {
        let mark = |(_, out): &(String, bool)| match out {
            true => self.paint(Tone::Bad, "✗"),
            false => self.paint(Tone::Good, "●"),
        };
        let marks: Vec<String> = nodes.iter().map(mark).collect();
        let out: Vec<&str> = nodes
            .iter()
            .filter(|(_, out)| *out)
            .map(|(name, _)| name.as_str())
            .collect();
        let words = if out.is_empty() {
            "all nodes take new pods".to_owned()
        } else {
            format!("{} out of scheduling", out.join(", "))
        };
        Self::line(&format!("  {}   {words}", marks.join(" ")));
    }

    /// Whether a person looks at it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Something that happened, with its time since the moment that counts.
    pub fn happened(&self, tone: Tone, after: Duration, text: &str) {
        let time = format!("{:>9.1} ms", after.as_secs_f64() * 1e3);
        Self::line(&format!(
            "  {}  {}",
            self.paint(Tone::Strong, &time),
            self.paint(tone, text)
        ));
    }

    /// Begins a step; it is printed when it is done.
    pub fn step(&self, what: &str) -> Step<'_> {
        let spinner = self.terminal.then(|| {
            let style = ProgressStyle::with_template("  {spinner:.cyan} {msg} {elapsed:.dim}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let spinner = ProgressBar::new_spinner()
                .with_style(style)
                .with_message(what.to_owned());
            spinner.enable_steady_tick(SPIN);
            spinner
        });
        Step {
            view: self,
            what: what.to_owned(),
            started: Instant::now(),
            spinner,
        }
    }

    /// A table of names and values; the first column is padded.
    pub fn table(&self, head: [&str; 3], rows: &[[String; 3]]) {
        let width = |column: usize| {
            rows.iter()
                .map(|r| r[column].chars().count())
                .chain([head[column].len()])
                .max()
                .unwrap_or(0)
        };
        let (first, second) = (width(0), width(1));
        let line = |cells: [&str; 3]| {
            format!(
                "  {:<first$}  {:>second$}  {}",
                cells[0], cells[1], cells[2]
            )
        };
        Self::line(&self.paint(Tone::Strong, &line(head)));
        for [a, b, c] in rows {
            Self::line(&line([a, b, c]));
        }
    }

    /// Time since the demo began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.terminal {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31;1",
            Tone::Quiet => "2",
            Tone::Strong => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    fn line(text: &str) {
        // A closed pipe ends the demo's output, not the demo.
        writeln!(std::io::stdout().lock(), "{text}").ok();
    }
}

impl Step<'_> {
    /// The step is done; `outcome` says more than its name, or nothing.
    pub fn done(self, outcome: &str) -> Duration {
        let took = self.started.elapsed();
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        let mark = self.view.paint(Tone::Good, "✓");
        let time = self
            .view
            .paint(Tone::Quiet, &format!("{:.1} s", took.as_secs_f64()));
        let outcome = if outcome.is_empty() {
            String::new()
        } else {
            format!(": {outcome}")
        };
        View::line(&format!("  {mark} {}{outcome} {time}", self.what));
        took
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
