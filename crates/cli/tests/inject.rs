//! `warden inject`, against a server on a unix socket.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use wire::datamodels::platform_connector_server::{PlatformConnector, PlatformConnectorServer};
use wire::datamodels::{Entity, HealthEvents};

use crate::kit::{Ran, warden};

/// An agent that keeps what it is told, or refuses it.
#[derive(Debug, Clone, Default)]
struct Agent {
    told: Arc<Mutex<Vec<HealthEvents>>>,
    refusal: Option<&'static str>,
}

#[tonic::async_trait]
impl PlatformConnector for Agent {
    async fn health_event_occurred_v1(
        &self,
        request: Request<HealthEvents>,
    ) -> Result<Response<()>, Status> {
        if let Some(why) = self.refusal {
            return Err(Status::permission_denied(why));
        }
        self.told.lock().unwrap().push(request.into_inner());
        Ok(Response::new(()))
    }
}

fn serve(agent: &Agent, folder: &Path) -> (Runtime, PathBuf) {
    let path = folder.join("agent.sock");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime
        .block_on(async { UnixListener::bind(&path) })
        .unwrap();
    let service = PlatformConnectorServer::new(agent.clone());
    let serving = Server::builder()
        .add_service(service)
        .serve_with_incoming(UnixListenerStream::new(listener));
    runtime.spawn(serving);
    (runtime, path)
}

fn inject(socket: &Path, arguments: &[&str]) -> Ran {
    let socket = socket.to_str().unwrap();
    warden(&[&["inject", "--socket", socket], arguments].concat())
}

/// Standard error without the warning that a user who is not root gets.
fn errors(ran: &Ran) -> String {
    let lines = ran
        .err
        .lines()
        .filter(|line| !line.starts_with("warning: not root"));
    lines.collect()
}

#[test]
fn an_event_says_what_the_flags_say_and_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::default();
    let (_runtime, socket) = serve(&agent, folder.path());
    let ran = inject(
        &socket,
        &[
            "SysLogsXIDError",
            "--code",
            "79",
            "--code",
            "48",
            "--entity",
            "PCI=0000:17:00",
            "--entity",
            "GPU=3",
            "--fatal",
            "--action",
            "RESTART_BM",
            "--message",
            "a test",
            "--strategy",
            "store-only",
            "--node",
            "gpu-17",
        ],
    );
    assert_eq!((ran.code, errors(&ran).as_str()), (Some(0), ""), "{ran:?}");
    assert!(
        ran.out
            .starts_with("SysLogsXIDError 79 48: the agent has it safe ("),
        "{}",
        ran.out
    );
    assert!(
        ran.out
            .trim_end()
            .ends_with("; end it with the same command and --healthy")
    );
    let batch = agent.told.lock().unwrap().pop().unwrap();
    let [event] = &batch.events[..] else {
        panic!("{batch:?}")
    };
    let entity = |kind: &str, value: &str| Entity {
        entity_type: kind.into(),
        entity_value: value.into(),
    };
    assert_eq!(
        (
            event.agent.as_str(),
            event.component_class.as_str(),
            event.check_name.as_str()
        ),
        ("syslog-health-monitor", "GPU", "SysLogsXIDError"),
        "a known check brings its agent and class"
    );
    assert_eq!(event.error_code, ["79", "48"]);
    assert_eq!(
        event.entities_impacted,
        [entity("PCI", "0000:17:00"), entity("GPU", "3")]
    );
    assert_eq!((event.is_fatal, event.is_healthy), (true, false));
    assert_eq!(
        (event.recommended_action, event.processing_strategy),
        (24, 2)
    );
    assert_eq!(
        (event.message.as_str(), event.node_name.as_str()),
        ("a test", "gpu-17")
    );
    assert_eq!(
        event.metadata.get(health_event::keys::INJECTED).unwrap(),
        "true"
    );
    assert!(event.generated_timestamp.is_some());
    let accepted = wire::accept(batch.clone(), None, jiff::Timestamp::now());
    assert!(accepted.is_ok(), "{accepted:?}");
}

#[test]
fn an_unknown_check_speaks_under_our_name_for_the_agents_own_node() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::default();
    let (_runtime, socket) = serve(&agent, folder.path());
    let ran = inject(
        &socket,
        &[
            "FanWatch",
            "--class",
            "Fan",
            "--healthy",
            "--format",
            "json",
        ],
    );
    let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&object["acknowledged"], &object["check"]),
        (&true.into(), &"FanWatch".into())
    );
    let ended = inject(&socket, &["FanWatch", "--class", "Fan", "--healthy"]);
    assert!(ended.out.trim_end().ends_with(" ms)"), "{}", ended.out);
    let batch = agent.told.lock().unwrap().pop().unwrap();
    let event = &batch.events[0];
    assert_eq!(
        (event.agent.as_str(), event.component_class.as_str()),
        ("warden-inject", "Fan")
    );
    assert_eq!((event.is_healthy, event.node_name.as_str()), (true, ""));
}

#[test]
fn a_refusal_and_a_missing_agent_are_errors_that_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.sock");
    let ran = inject(&missing, &["Check"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        errors(&ran).contains("Run this on the node, as root, while warden-agent runs"),
        "{ran:?}"
    );
    let agent = Agent {
        refusal: Some("event 0: nodeName is \"b\""),
        ..Agent::default()
    };
    let (_runtime, socket) = serve(&agent, folder.path());
    let ran = inject(&socket, &["Check", "--node", "b"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        errors(&ran).contains("refused the event: event 0: nodeName is \"b\" [PermissionDenied]"),
        "{ran:?}"
    );
}

#[test]
fn flags_that_contradict_or_say_nothing_are_refused() {
    for flags in [
        &["C", "--fatal", "--healthy"][..],
        &["C", "--entity", "PCI"],
        &["C", "--action", "CUSTOM"],
        &["C", "--strategy", "all"],
        &["C", "--node", "B"],
        &[],
    ] {
        assert_eq!(
            inject(Path::new("/nowhere"), flags).code,
            Some(2),
            "{flags:?}"
        );
    }
}
