//! `warden inject`: says something through the agent's socket, as a monitor of the node would.
//!
//! Its events carry `warden.dev/injected` in their metadata. The agent keeps that mark from root
//! only, and lets root alone speak for its own detectors.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use health_event::{Entity, HealthEvent, ProcessingStrategy, RecommendedAction, checks, keys};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::json;
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_client::PlatformConnectorClient;

use crate::ask;
use crate::output::{self, Exit, Format, GREEN, Options, harmless, unless_gone};

/// Where monitors of the reference expect the agent.
const DEFAULT_SOCKET: &str = "/var/run/nvsentinel/nvsentinel.sock";
/// The agent holds a call for up to 5 s until the event is durable.
const PATIENCE: Duration = Duration::from_secs(15);
/// Agent name of a check that we do not know.
const OWN_NAME: &str = "warden-inject";
/// What can be asked for: all but CUSTOM, whose name no flag gives.
const ACTIONS: [&str; 9] = [
    "NONE",
    "COMPONENT_RESET",
    "CONTACT_SUPPORT",
    "RUN_FIELDDIAG",
    "RESTART_VM",
    "RESTART_BM",
    "REPLACE_VM",
    "RUN_DCGMEUD",
    "UNKNOWN",
];

/// What to say.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: warden inject SysLogsXIDError --code 79 --entity \
PCI=0000:17:00 --fatal --action RESTART_BM\nThe same with --healthy instead of --fatal ends it.\n\
As root it acts as a real fault does: the node may be taken out of service. Events of others than \
root lose their mark `injected`, and may not speak for the agent's own detectors.\n\nExit codes: 0 \
the agent has it on disk; 2 wrong usage, refused, or no answer."
)]
pub struct Args {
    /// The agent's socket.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Name of the check, for example SysLogsXIDError.
    check: String,
    /// Name of the monitor; default: the one whose check it is, else warden-inject.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Kind of part; default: the check's, else GPU.
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Error code; may be given several times.
    #[arg(long = "code", value_name = "CODE")]
    codes: Vec<String>,
    /// What it is about, for example PCI=0000:17:00; may be given several times.
    #[arg(long = "entity", value_name = "TYPE=VALUE", value_parser = entity)]
    entities: Vec<Entity>,
    /// Say that work on the part can't go on.
    #[arg(long, conflicts_with = "healthy")]
    fatal: bool,
    /// Say that all is well again with what is named; ends the fault that the same flags opened.
    #[arg(long)]
    healthy: bool,
    /// Text for people; `warden explain` shows it.
    #[arg(long, value_name = "TEXT", default_value = "injected by a person")]
    message: String,
    /// The repair asked for.
    #[arg(long, value_name = "ACTION", default_value = "NONE", value_parser = action_parser())]
    action: String,
    /// How far the event may act.
    #[arg(long, value_enum, default_value_t = Strategy::Execute)]
    strategy: Strategy,
    /// The node's name; an agent takes only its own, which is the default.
    #[arg(long, value_name = "NODE", value_parser = ask::node)]
    node: Option<health_event::NodeName>,
}

/// How far an event may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Strategy {
    /// It may take the node out of service.
    #[value(name = "execute-remediation")]
    Execute,
    /// It is stored and analysed.
    #[value(name = "store-and-analyse")]
    Analyse,
    /// It is only stored.
    #[value(name = "store-only")]
    Store,
}

fn action_parser() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(ACTIONS)
}

fn entity(text: &str) -> Result<Entity, String> {
    match text.split_once('=') {
        Some((kind, value)) if !kind.is_empty() && !value.is_empty() => {
            Ok(Entity::new(kind, value))
        }
        Some(_) | None => Err("want TYPE=VALUE, for example PCI=0000:17:00".to_owned()),
    }
}

/// Why nothing was said.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The runtime.
    #[error("can't start the network's runtime")]
    Runtime(#[source] io::Error),
    /// Nobody listens.
    #[error(
        "can't connect to the agent's socket {}: {why}. Run this on the node, as root, while \
         warden-agent runs; --socket names another path", path.display()
    )]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The agent says no.
    #[error("the agent at {} refused the event: {why} [{code:?}]", path.display())]
    Refused {
        /// Its path.
        path: PathBuf,
        /// The agent's words.
        why: String,
        /// The gRPC code.
        code: tonic::Code,
    },
    /// No answer.
    #[error(
        "the agent at {} did not answer in time: whether the event is kept is unknown; `warden \
         explain NODE` tells", path.display()
    )]
    Late {
        /// Its path.
        path: PathBuf,
    },
    /// Standard output.
    #[error("can't write the result to standard output")]
    Output(#[from] io::Error),
}

impl InjectError {
    /// Stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Runtime(_) => "runtime",
            Self::Socket { .. } => "agent_unreachable",
            Self::Refused { .. } => "agent_refused",
            Self::Late { .. } => "agent_late",
            Self::Output(_) => "output_unwritable",
        }
    }
}

/// Says it and waits until the agent has it safe.
///
/// # Errors
/// [`InjectError`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, InjectError> {
    if !rustix::process::geteuid().is_root() {
        output::report_warning(
            "not root: the agent takes the mark \"injected\" off, and refuses checks of its own \
             detectors",
        );
    }
    let event = event(args, Timestamp::now());
    let what = [event.check_name.clone(), event.error_codes.join(" ")].join(" ");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(InjectError::Runtime)?;
    let begun = Instant::now();
    runtime.block_on(send(args, event))?;
    let millis = begun.elapsed().as_millis();
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => {
            let done = json!({
                "acknowledged": true,
                "check": args.check,
                "healthy": args.healthy,
                "milliseconds": u64::try_from(millis).unwrap_or(u64::MAX),
            });
            writeln!(out, "{done}")
        }
        Format::Text => {
            let next = if args.healthy {
                ""
            } else {
                "; end it with the same command and --healthy"
            };
            let what = harmless(what.trim_end());
            writeln!(
                out,
                "{GREEN}{what}: the agent has it safe{GREEN:#} ({millis} ms){next}"
            )
        }
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(Exit::Clean)
}

fn event(args: &Args, now: Timestamp) -> HealthEvent {
    let known = checks::CHECKS.iter().find(|check| check.name == args.check);
    let or = |given: &Option<String>, known: Option<&str>, default: &str| {
        given.as_deref().or(known).unwrap_or(default).to_owned()
    };
    HealthEvent {
        version: 1,
        agent: or(&args.agent, known.map(|check| check.agent), OWN_NAME),
        component_class: or(&args.class, known.map(|check| check.component_class), "GPU"),
        check_name: args.check.clone(),
        is_fatal: args.fatal,
        is_healthy: args.healthy,
        message: args.message.clone(),
        recommended_action: RecommendedAction::from_name(&args.action).unwrap_or_default(),
        error_codes: args.codes.clone(),
        entities: args.entities.clone(),
        metadata: [(keys::INJECTED.to_owned(), "true".to_owned())].into(),
        generated_at: Some(now),
        node_name: args
            .node
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        strategy: match args.strategy {
            Strategy::Execute => ProcessingStrategy::ExecuteRemediation,
            Strategy::Analyse => ProcessingStrategy::StoreAndAnalyse,
            Strategy::Store => ProcessingStrategy::StoreOnly,
        },
        ..HealthEvent::default()
    }
}

async fn send(args: &Args, event: HealthEvent) -> Result<(), InjectError> {
    let path = || args.socket.clone();
    let batch = HealthEvents {
        version: 1,
        events: vec![event.into()],
    };
    // The connection is made first, so that its error is the system's own.
    let unreachable = |why: String| InjectError::Socket { path: path(), why };
    let stream = UnixStream::connect(&args.socket)
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream
            .take()
            .ok_or_else(|| io::Error::other("the connection is lost"));
        std::future::ready(stream)
    });
    // The URI names nobody: the connector goes to the socket.
    let channel = Endpoint::from_static("http://socket")
        .connect_with_connector(connector)
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let mut client = PlatformConnectorClient::new(channel);
    let answer = tokio::time::timeout(PATIENCE, client.health_event_occurred_v1(batch)).await;
    match answer {
        Err(_) => Err(InjectError::Late { path: path() }),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(InjectError::Refused {
            path: path(),
            why: status.message().to_owned(),
            code: status.code(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_that_can_be_given_is_one_of_the_wires() {
        for name in ACTIONS {
            let action = RecommendedAction::from_name(name).unwrap();
            assert_ne!(action, RecommendedAction::Custom);
        }
    }

    #[test]
    fn an_entity_is_a_type_and_a_value() {
        assert_eq!(
            entity("PCI=0000:17:00"),
            Ok(Entity::new("PCI", "0000:17:00"))
        );
        assert_eq!(entity("X=a=b"), Ok(Entity::new("X", "a=b")));
        for bad in ["", "PCI", "PCI=", "=1"] {
            assert!(entity(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
