//! `warden hold`: takes a node out of service until a person ends it.

use health_event::NodeName;
use wire::api::HoldRequest;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

const AFTER_HELP: &str = "\
The node is cordoned as for a fault, and stays out until `warden release NODE`; the breaker does not \
keep it from that. A second hold takes the place of the first, with its reason. In a dry run (profile \
observe) and of a protected node it is only recorded. With quarantine off (profile silent) it is refused.

Exit codes: 0 done; 1 only recorded: nothing is written to the node; 2 wrong usage, refused, or no \
answer.";

/// Which node to take out.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The node's name.
    #[arg(value_parser = ask::node)]
    node: NodeName,
    /// Why, for the next person: `warden explain` shows it.
    #[arg(long, value_name = "TEXT", value_parser = ask::reason)]
    reason: String,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let request = HoldRequest {
        reason: args.reason.clone(),
    };
    let path = format!("/api/v1/nodes/{}/hold", args.node);
    ask::said(&connection.open()?.post(&path, &request)?, *options)
}
