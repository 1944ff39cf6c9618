//! `warden release`: ends a person's hold, or the node's incident.

use health_event::NodeName;
use wire::api::ReleaseRequest;

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{Exit, Options};

const AFTER_HELP: &str = "\
Held by `warden hold`: ends the hold, and the node comes back once its faults, if any, have ended. \
Else: ends its incident now. The faults open at that moment do not take it out again for \
quarantine.manual_uncordon_hold, unless they end and come again. A repair that is ordered is called off \
where its signal was not sent; one that may be sent can't be recalled. In a dry run (profile observe) the end \
is only recorded.

Exit codes: 0 done; 1 only recorded: nothing is written to the node; 2 wrong usage, refused (there is \
nothing to end, or Warden does not write), or no answer.";

/// Which node to give back.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The node's name.
    #[arg(value_parser = ask::node)]
    node: NodeName,
    /// Why, for the next person: `warden timeline` shows it.
    #[arg(long, value_name = "TEXT", value_parser = ask::reason)]
    reason: Option<String>,
}

/// Asks the controller to.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let path = format!("/api/v1/nodes/{}/release", args.node);
    let request = ReleaseRequest {
        reason: args.reason.clone().unwrap_or_default(),
    };
    ask::said(&connection.open()?.post(&path, &request)?, *options)
}
