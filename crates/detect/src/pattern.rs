//! Regular expressions of the detectors.

use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};

/// Compiles at first use: a machine without faults never pays for it. Logs are bytes, so the
/// classes are ASCII, which also keeps the automata small.
pub(crate) fn compiled(cell: &'static OnceLock<Regex>, text: &str) -> &'static Regex {
    cell.get_or_init(|| {
        RegexBuilder::new(text)
            .unicode(false)
            .build()
            .expect("every pattern is a constant that a test compiles")
    })
}
