//! `warden cancel`: ends a node's incident now.

use health_event::NodeName;
use wire::api::ReleaseRequest;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

const AFTER_HELP: &str = "\
The incident ends at once, also one that a person holds, that drains or that is repaired: no further pod is \
asked to go, and the node is given back. A repair whose signal was not sent is called off; one that may be \
sent can't be recalled. The faults open at that moment do not take the node out again for \
quarantine.manual_uncordon_hold, unless they end and come again.

Exit codes: 0 done; 1 only recorded: nothing is written to the node; 2 wrong usage, refused (there is no \
incident, or Warden does not write), or no answer.";

/// Which incident to end.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The node's name.
    #[arg(value_parser = ask::node)]
    node: NodeName,
    /// Why, for the next person: `warden timeline` shows it.
    #[arg(long, value_name = "TEXT", value_parser = ask::reason)]
    reason: String,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let request = ReleaseRequest {
        reason: args.reason.clone(),
    };
    let path = format!("/api/v1/nodes/{}/cancel", args.node);
    ask::said(&connection.open()?.post(&path, &request)?, *options)
}
