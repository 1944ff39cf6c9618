//! `warden close`: closes one fault that a person knows to be over.

use health_event::NodeName;
use wire::api::CloseRequest;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

const AFTER_HELP: &str = "\
If it is said again it is open again. A node whose last fault is closed so is given back.

Exit codes: 0 done; 2 wrong usage, no such fault, or no answer.";

/// Which fault to close.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The node's name.
    #[arg(value_parser = ask::node)]
    node: NodeName,
    /// The fault's id (12 characters), as `warden explain NODE` shows it.
    fault: String,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let request = CloseRequest {
        fault: args.fault.clone(),
    };
    let path = format!("/api/v1/nodes/{}/close", args.node);
    ask::said(&connection.open()?.post(&path, &request)?, *options)
}
