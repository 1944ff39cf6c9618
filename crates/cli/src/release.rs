//! `warden release`: ends a person's hold, or the node's incident.

use health_event::NodeName;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

/// Which node to give back.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Node.
    #[arg(value_parser = ask::node)]
    node: NodeName,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ApiError> {
    let path = format!("/api/v1/nodes/{}/release", args.node);
    let nothing_more = serde_json::json!({});
    ask::said(
        &args.connection.open()?.post(&path, &nothing_more)?,
        *options,
    )
}
