//! `warden close`: closes one fault that a person knows to be over.

use health_event::NodeName;
use wire::api::CloseRequest;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

/// Which fault to close.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Node.
    #[arg(value_parser = ask::node)]
    node: NodeName,
    /// Id of the fault, as `warden explain NODE` prints it.
    fault: String,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ApiError> {
    let request = CloseRequest {
        fault: args.fault.clone(),
    };
    let path = format!("/api/v1/nodes/{}/close", args.node);
    ask::said(&args.connection.open()?.post(&path, &request)?, *options)
}
