//! `warden hold`: takes a node out of service until a person ends it.

use health_event::NodeName;
use wire::api::HoldRequest;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

/// Which node to take out.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Node.
    #[arg(value_parser = ask::node)]
    node: NodeName,
    /// Why, for people: shown with the incident.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ApiError> {
    let request = HoldRequest {
        reason: args.reason.clone(),
    };
    let path = format!("/api/v1/nodes/{}/hold", args.node);
    ask::said(&args.connection.open()?.post(&path, &request)?, *options)
}
