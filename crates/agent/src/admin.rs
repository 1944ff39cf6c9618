//! `/healthz` and `/metrics` on a loopback port, by hand: a web framework would cost more memory
//! than the rest of the agent.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::core::{Core, Snapshot};
use crate::detectors::Health;
use crate::status::{Shown, Status};

/// Longest exchange: a slow caller must not hold up the next one for long.
const EXCHANGE: Duration = Duration::from_secs(2);
/// Bytes of a request that are looked at; the first line is all that counts.
const REQUEST: usize = 2_048;

/// Serves for ever, one caller at a time.
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
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors; they come back as connections end.
            tokio::time::sleep(EXCHANGE).await;
            continue;
        };
        let page = |path: &str| page(path, &core, &status, &stand_ins);
        // Whoever is too slow gets nothing.
        let _ = tokio::time::timeout(EXCHANGE, exchange(stream, page)).await;
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
        "/metrics" => Some((true, metrics(&now, &status.shown()))),
        _ => None,
    }
}

/// Well = it can keep or deliver what it finds; being without a controller for a while is part of
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
        "spool {}: {spool}, {} bytes, {} events in memory, {} dropped",
        now.spool_id, now.level.bytes, now.in_memory, now.level.dropped
    );
    let _ = writeln!(text, "faults asserted: {}", now.count);
    for stand_in in stand_ins {
        let _ = writeln!(text, "stand-in: {stand_in}");
    }
    (!now.spool_fault || link.connected, text)
}

fn metrics(now: &Snapshot, link: &Shown) -> String {
    let c = &now.counters;
    let numbers = [
        ("events_taken_total", "counter", c.taken),
        ("events_delivered_total", "counter", c.delivered),
        ("events_refused_total", "counter", c.refused),
        ("events_dropped_total", "counter", now.level.dropped),
        ("spool_write_failures_total", "counter", c.write_failures),
        ("kernel_log_records_total", "counter", c.records_read),
        ("kernel_log_records_lost_total", "counter", c.records_lost),
        ("socket_calls_refused_total", "counter", c.calls_refused),
        (
            "socket_connections_turned_away_total",
            "counter",
            c.turned_away,
        ),
        ("socket_connections_ended_total", "counter", c.ended),
        ("reports_total", "counter", link.reports),
        ("spool_bytes", "gauge", now.level.bytes),
        ("events_in_memory", "gauge", now.in_memory as u64),
        ("faults_asserted", "gauge", now.count.into()),
        ("controller_connected", "gauge", link.connected.into()),
    ];
    let mut text = String::new();
    for (name, kind, value) in numbers {
        let _ = writeln!(
            text,
            "# TYPE warden_agent_{name} {kind}\nwarden_agent_{name} {value}"
        );
    }
    let _ = writeln!(text, "# TYPE warden_agent_detector_settled gauge");
    for (name, health) in &now.detectors {
        let settled = u8::from(*health == Health::Settled);
        let _ = writeln!(
            text,
            "warden_agent_detector_settled{{detector=\"{name}\"}} {settled}"
        );
    }
    text
}
