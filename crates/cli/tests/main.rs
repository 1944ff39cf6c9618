//! The built program, as a person runs it.
#![expect(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach helpers"
)]

mod breaker;
mod config;
mod connection;
mod exits;
mod explain;
mod headlines;
mod hostile;
mod inject;
mod kit;
mod logs;
mod operators;
mod plugin;
mod requests;
mod scan;
mod stages;
mod states;
mod status;
mod texts;
mod timeline;
