//! What the subcommands share that ask for something to be done: `hold`, `release`, `cancel`,
//! `close`, `breaker reset`.

use std::io::Write as _;

use health_event::NodeName;
use wire::api::Done;

use crate::api::{Answer, ApiError};
use crate::output::{Exit, Format, GREEN, Options, YELLOW, harmless, json_line, unless_gone};

/// A node's name from the command line.
pub(crate) fn node(text: &str) -> Result<NodeName, String> {
    NodeName::new(text).map_err(|error| error.to_string())
}

/// A reason from the command line: the next person reads it, so it has to say something.
pub(crate) fn reason(text: &str) -> Result<String, &'static str> {
    let said = !harmless(text).trim().is_empty();
    said.then(|| text.to_owned())
        .ok_or("it is empty: say why, for the next person")
}

/// Prints what was done. The answer is [`Exit::Unhealthy`] where it was recorded and nothing is written.
pub(crate) fn said(done: &Answer<Done>, options: Options) -> Result<Exit, ApiError> {
    let (style, exit) = if done.value.only_recorded {
        (YELLOW, Exit::Unhealthy)
    } else {
        (GREEN, Exit::Clean)
    };
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => json_line(&mut out, &done.json),
        Format::Text => writeln!(out, "{style}{}{style:#}", harmless(&done.value.done)),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(exit)
}
