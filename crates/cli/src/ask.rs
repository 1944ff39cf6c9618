//! What the subcommands share that ask for something to be done: `hold`, `release`, `close`,
//! `breaker reset`.

use std::io::Write as _;

use health_event::NodeName;
use wire::api::Done;

use crate::api::{Answer, ApiError};
use crate::output::{Exit, Format, GREEN, Options, harmless, json_line, unless_gone};

/// A node's name from the command line.
pub(crate) fn node(text: &str) -> Result<NodeName, String> {
    NodeName::new(text).map_err(|error| error.to_string())
}

/// Prints what was done.
pub(crate) fn said(done: &Answer<Done>, options: Options) -> Result<Exit, ApiError> {
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => json_line(&mut out, &done.json),
        Format::Text => writeln!(out, "{GREEN}{}{GREEN:#}", harmless(&done.value.done)),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(Exit::Clean)
}
