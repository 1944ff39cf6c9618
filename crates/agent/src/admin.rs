//! `/healthz` and `/metrics` on a loopback port, by hand: a web framework would cost more memory
//! than the rest of the agent.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use health_event::text::counted;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::core::{Core, Snapshot};
use crate::detectors::Health;
use crate::status::{Shown, Status};
use crate::xids::{self, Described};

/// Longest exchange.
const EXCHANGE: Duration = Duration::from_secs(2);
/// Exchanges at a time: the oldest, which waits for its caller, makes room for the next one.
const AT_A_TIME: usize = 32;
/// Bytes of a request that are looked at; the first line is all that counts.
const REQUEST: usize = 2_048;

/// Serves for ever. Callers that say nothing hold up nobody.
///
/// # Errors
/// If the address can't be listened on.
pub async fn run(
    address: SocketAddr,
    core: Arc<Core>,
    status: Arc<Status>,
    stand_ins: Vec<String>,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /healthz and /metrics");
    let stand_ins: Arc<[String]> = stand_ins.into();
    let mut exchanges: VecDeque<JoinHandle<()>> = VecDeque::with_capacity(AT_A_TIME);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors; they come back as connections end.
            tokio::time::sleep(EXCHANGE).await;
            continue;
        };
        exchanges.retain(|exchange| !exchange.is_finished());
        if exchanges.len() >= AT_A_TIME
            && let Some(oldest) = exchanges.pop_front()
        {
            oldest.abort();
        }
        let (core, status) = (Arc::clone(&core), Arc::clone(&status));
        let stand_ins = Arc::clone(&stand_ins);
        exchanges.push_back(tokio::spawn(async move {
            let page = |path: &str| page(path, &core, &status, &stand_ins);
            // Whoever is too slow gets nothing.
            let _ = tokio::time::timeout(EXCHANGE, exchange(stream, page)).await;
        }));
    }
}

async fn exchange(
    mut stream: TcpStream,
    page: impl Fn(&str) -> Option<(bool, String)>,
) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(REQUEST);
    while request.len() < REQUEST && !request.windows(4).any(|w| w == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            break;
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_whitespace();
    let path = match (words.next(), words.next()) {
        (Some("GET"), Some(path)) => path,
        _ => "",
    };
    let (head, body) = match page(path) {
        Some((true, body)) => ("200 OK", body),
        Some((false, body)) => ("503 Service Unavailable", body),
        None => ("404 Not Found", "want /healthz or /metrics\n".to_owned()),
    };
    let answer = format!(
        "HTTP/1.1 {head}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

fn page(path: &str, core: &Core, status: &Status, stand_ins: &[String]) -> Option<(bool, String)> {
    let now = core.snapshot();
    match path {
        "/healthz" => Some(health(&now, &status.shown(), stand_ins)),
        "/metrics" => {
            let xids = core.xids.page(core.identity().node.as_str());
            Some((true, metrics(&now, &status.shown()) + &xids))
        }
        _ => None,
    }
}

/// Well = it can keep or deliver what it finds, and its socket can be connected to; being without a controller for a while is part of
/// its job and no reason to restart it.
fn health(now: &Snapshot, link: &Shown, stand_ins: &[String]) -> (bool, String) {
    let mut text = String::new();
    let controller = match (&link.why, link.connected) {
        (None, true) => "connected".to_owned(),
        (Some(why), _) => why.clone(),
        (None, false) => "not connected yet".to_owned(),
    };
    // Writing to a string can't fail.
    let _ = writeln!(text, "controller: {controller}");
    for (name, health) in &now.detectors {
        let why = match health {
            Health::Blind(why) | Health::Off(why) => format!(": {why}"),
            Health::Starting | Health::Settled => String::new(),
        };
        let _ = writeln!(text, "detector {name}: {}{why}", health.as_str());
    }
    let spool = if now.spool_fault {
        "can't be written"
    } else {
        "ok"
    };
    let _ = writeln!(
        text,
        "spool {}: {spool}, {} bytes, {} in memory, {} dropped",
        now.spool_id,
        now.level.bytes,
        counted(now.in_memory as u64, "event"),
        now.level.dropped
    );
    if let Some(why) = &link.socket {
        let _ = writeln!(text, "socket not served: {why}");
    }
    let _ = writeln!(text, "faults asserted: {}", now.count);
    for stand_in in stand_ins {
        let _ = writeln!(text, "stand-in: {stand_in}");
    }
    let keeps = !now.spool_fault || link.connected;
    (keeps && link.socket.is_none(), text)
}

/// One number of `/metrics`.
#[derive(Debug)]
pub struct Metric {
    /// Name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// What it tells.
    pub help: &'static str,
    value: fn(&Snapshot, &Shown) -> u64,
}

const fn counter(
    name: &'static str,
    help: &'static str,
    value: fn(&Snapshot, &Shown) -> u64,
) -> Metric {
    let kind = "counter";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    value: fn(&Snapshot, &Shown) -> u64,
) -> Metric {
    let kind = "gauge";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

/// All numbers without labels.
pub const METRICS: [Metric; 16] = [
    counter(
        "warden_agent_events_taken_total",
        "Events taken in, of detectors and of the socket",
        |now, _| now.counters.taken,
    ),
    counter(
        "warden_agent_events_delivered_total",
        "Events that the controller has",
        |now, _| now.counters.delivered,
    ),
    counter(
        "warden_agent_events_refused_total",
        "Events that the controller refused; each is in the folder refused/",
        |now, _| now.counters.refused,
    ),
    counter(
        "warden_agent_events_dropped_total",
        "Events that left the spool undelivered since it was made; each is in a gap record",
        |now, _| now.level.dropped,
    ),
    counter(
        "warden_agent_spool_write_failures_total",
        "Failed writes of the spool",
        |now, _| now.counters.write_failures,
    ),
    counter(
        "warden_agent_kernel_log_records_total",
        "Kernel log records read",
        |now, _| now.counters.records_read,
    ),
    counter(
        "warden_agent_kernel_log_records_lost_total",
        "Kernel log records that were overwritten before they were read",
        |now, _| now.counters.records_lost,
    ),
    counter(
        "warden_agent_socket_calls_refused_total",
        "Calls on the socket that were answered with an error",
        |now, _| now.counters.calls_refused,
    ),
    counter(
        "warden_agent_socket_calls_given_up_total",
        "Calls on the socket that took too long, or that their caller gave up",
        |now, _| now.counters.calls_given_up,
    ),
    counter(
        "warden_agent_socket_connections_turned_away_total",
        "Connections to the socket that found no place among those of their user",
        |now, _| now.counters.turned_away,
    ),
    counter(
        "warden_agent_socket_connections_ended_total",
        "Connections to the socket that were ended because nothing was called on them",
        |now, _| now.counters.ended,
    ),
    counter(
        "warden_agent_reports_total",
        "Reports that the controller took",
        |_, link| link.reports,
    ),
    gauge(
        "warden_agent_spool_bytes",
        "Bytes used in the spool",
        |now, _| now.level.bytes,
    ),
    gauge(
        "warden_agent_events_in_memory",
        "Events in memory that the controller has not acknowledged",
        |now, _| now.in_memory as u64,
    ),
    gauge(
        "warden_agent_faults_asserted",
        "Faults that the detectors assert",
        |now, _| now.count.into(),
    ),
    gauge(
        "warden_agent_controller_connected",
        "1 while a connection to the controller stands",
        |_, link| link.connected.into(),
    ),
];
/// Whether a detector has seen everything.
pub const DETECTOR_SETTLED: Described = (
    "warden_agent_detector_settled",
    "gauge",
    &["detector"],
    "1 for a detector that has seen everything",
);

/// All that have labels or buckets.
pub const LABELLED: [Described; 3] = [DETECTOR_SETTLED, xids::ERRORS, xids::LATENCY];

fn metrics(now: &Snapshot, link: &Shown) -> String {
    let mut text = String::new();
    for Metric {
        name,
        kind,
        help,
        value,
    } in METRICS
    {
        let value = value(now, link);
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}"
        );
    }
    text.push_str(&xids::head(&DETECTOR_SETTLED));
    let (metric, ..) = DETECTOR_SETTLED;
    for (name, health) in &now.detectors {
        let settled = u8::from(*health == Health::Settled);
        let _ = writeln!(text, "{metric}{{detector=\"{name}\"}} {settled}");
    }
    text
}
