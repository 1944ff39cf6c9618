//! Runs the program, and a server that answers with recorded API JSON.

mod facts;
mod server;

pub(crate) use facts::*;
pub(crate) use server::{Server, tls_server};

use std::process::{Command, Output, Stdio};

/// What a run of the program gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The program with nothing of this machine's environment in it, in Berlin.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warden"));
    command
        .env_clear()
        .env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        .stdin(Stdio::null());
    command
}

/// Runs it against no server in particular.
pub(crate) fn warden(arguments: &[&str]) -> Ran {
    program().args(arguments).output().unwrap().into()
}

/// Runs it against a server, and finds nothing on standard error.
pub(crate) fn ask(server: &Server, arguments: &[&str]) -> Ran {
    let mut command = program();
    command.env("WARDEN_SERVER", server.url()).args(arguments);
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(ran.err, "", "{ran:?}");
    ran
}
