//! The watch that feeds the cache.
//!
//! The first list streams (`sendInitialEvents`), so that no body with all nodes is ever in memory;
//! where the server can't, pages of 100 are read. A watch that ends, which the server does often
//! and to slow readers of a burst, is resumed at the last version at once, without a list: only
//! when that fails too is there a pause. The loop only decodes and hands over.

use std::collections::BTreeSet;
use std::time::Duration;

use health_event::NodeName;
use http::StatusCode;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::decode::{Decoder, Line, Wanted};
use super::{NodeCache, NodeFacts};
use crate::kubernetes::{Call, CallError, Kube, Lines, NotBegun, jittered, percent_encoded};

/// Nodes of a page where the list can't stream: 100 × 55 KB is 5 MB in memory.
const PAGE: usize = 100;
/// Longest time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);
/// The server ends the watch after this; bookmarks keep the version fresh before.
const WATCH_SECONDS: u32 = 600;
/// First pause after a failure that brought nothing; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why a watch ended.
#[derive(Debug)]
enum End {
    /// The server ended it as it always does, or the connection was lost.
    Closed(String),
    /// The version is too old, or there is none: list again.
    Expired(String),
    /// The server knows no streaming list.
    NoStreaming,
    /// More is wanted of each node: list again.
    Wanted,
}

/// Where the watch stands.
#[derive(Debug, Default)]
struct Position {
    /// Last version seen; empty before the first list is complete.
    version: String,
    /// Nodes seen by the list that runs.
    seen: BTreeSet<NodeName>,
    /// Whether anything came since the last start.
    progress: bool,
    /// Whether pages are read because the list can't stream.
    pages: bool,
    /// Number of the wants that nodes are decoded with.
    wants: u64,
}

/// Feeds the cache until the future is dropped. `changed` is called after each change with the
/// node's name.
pub async fn run(kube: &Kube, cache: &NodeCache, changed: impl Fn(&NodeName)) {
    let mut wants = cache.wants();
    let mut decoder = Decoder::new(Wanted::clone(&wants.borrow().wanted));
    let mut position = Position::default();
    let mut pause = FIRST_PAUSE;
    loop {
        if position.wants != wants.borrow().number {
            let now = wants.borrow_and_update().clone();
            decoder = Decoder::new(Wanted::clone(&now.wanted));
            position.wants = now.number;
            position.version.clear();
        }
        position.progress = false;
        let end = tokio::select! {
            end = follow(kube, cache, &mut decoder, &mut position, &changed) => end,
            // The cache outlives its watch.
            _ = wants.changed() => End::Wanted,
        };
        cache.restarted();
        match end {
            End::NoStreaming => {
                info!(
                    code = "node_list_pages",
                    "the API server can't stream lists: reading pages"
                );
                position.pages = true;
                continue;
            }
            End::Expired(why) => {
                debug!(
                    code = "node_watch_expired",
                    why, "the node watch lists again"
                );
                position.version.clear();
            }
            End::Closed(why) => {
                debug!(code = "node_watch_ended", why, "the node watch is resumed");
            }
            End::Wanted => {
                info!(
                    code = "node_list_wider",
                    "the rules read more of each node: listing again"
                );
                continue;
            }
        }
        if position.progress {
            pause = FIRST_PAUSE;
            continue;
        }
        warn!(
            code = "node_watch_failed",
            version = position.version,
            "the node watch brings nothing and is tried again; is the API server reachable?"
        );
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn follow(
    kube: &Kube,
    cache: &NodeCache,
    decoder: &mut Decoder,
    position: &mut Position,
    changed: &impl Fn(&NodeName),
) -> End {
    if position.version.is_empty() && position.pages {
        match list(kube, cache, decoder, position.wants, changed).await {
            Ok(version) => position.version = version,
            Err(error) => return End::Expired(error.to_string()),
        }
    }
    if position.version.is_empty() {
        position.seen.clear();
    }
    let mut lines = match Lines::begin(kube, &path(position)).await {
        Ok(lines) => lines,
        Err(NotBegun::Lost(why)) => return End::Closed(why),
        Err(NotBegun::Answered(StatusCode::GONE)) => return End::Expired("410".to_owned()),
        Err(NotBegun::Answered(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY))
            if position.version.is_empty() =>
        {
            return End::NoStreaming;
        }
        Err(NotBegun::Answered(status)) => return End::Closed(status.to_string()),
    };
    loop {
        let end = match lines.next().await {
            Ok(line) => take(line, cache, decoder, position, changed),
            Err(why) => Some(End::Closed(why)),
        };
        if let Some(end) = end {
            return end;
        }
    }
}

fn path(position: &Position) -> String {
    let list = if position.version.is_empty() {
        "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()
    } else {
        format!("&resourceVersion={}", position.version)
    };
    format!(
        "/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}{list}"
    )
}

/// Takes one line in. Answers if the watch is over.
fn take(
    line: &[u8],
    cache: &NodeCache,
    decoder: &mut Decoder,
    position: &mut Position,
    changed: &impl Fn(&NodeName),
) -> Option<End> {
    let (line, version) = match decoder.line(line) {
        Ok(read) => read,
        Err(error) => {
            // An object that we can't read must not stop all others; the next version of it may do.
            warn!(code = "node_undecodable", %error, "a line of the node watch is passed over");
            return None;
        }
    };
    let listing = position.version.is_empty();
    match line {
        Line::Error { code: 410, message } => return Some(End::Expired(message)),
        Line::Error { code, message } => return Some(End::Closed(format!("{code} {message}"))),
        Line::Bookmark {
            resource_version,
            initial_end,
        } => {
            if listing && !initial_end {
                return None;
            }
            if listing {
                finish_list(cache, &position.seen, position.wants, changed);
                position.seen.clear();
            }
            position.version = resource_version;
        }
        Line::Gone(name) => {
            if cache.remove(&name) {
                changed(&name);
            }
            position.seen.remove(&name);
        }
        Line::Node(node) => {
            if listing {
                position.seen.insert(node.name.clone());
            }
            put(cache, node, listing, changed);
        }
    }
    position.progress = true;
    if !listing && is_version(&version) {
        position.version = version;
    }
    None
}

fn is_version(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn put(cache: &NodeCache, node: NodeFacts, from_list: bool, changed: &impl Fn(&NodeName)) {
    let name = node.name.clone();
    if cache.put(node, from_list) {
        changed(&name);
    }
}

fn finish_list(
    cache: &NodeCache,
    seen: &BTreeSet<NodeName>,
    wants: u64,
    changed: &impl Fn(&NodeName),
) {
    for name in cache.complete(seen, wants) {
        changed(&name);
    }
}

/// Reads all nodes in pages; answers the version from which to watch.
async fn list(
    kube: &Kube,
    cache: &NodeCache,
    decoder: &mut Decoder,
    wants: u64,
    changed: &impl Fn(&NodeName),
) -> Result<String, CallError> {
    let mut seen = BTreeSet::new();
    let mut next = String::new();
    loop {
        let call = Call {
            act: "listing of nodes".to_owned(),
            path: format!("/api/v1/nodes?limit={PAGE}{next}"),
            write: None,
            accept: "application/json",
        };
        let body = kube.call(&call, Instant::now() + PAGE_TIMEOUT).await?;
        let page = decoder
            .page(&body)
            .map_err(|error| CallError::Unavailable {
                act: call.act,
                message: format!("the answer is no list of nodes: {error}"),
            })?;
        for node in page.nodes {
            seen.insert(node.name.clone());
            put(cache, node, true, changed);
        }
        let Some(token) = page.next else {
            finish_list(cache, &seen, wants, changed);
            return Ok(page.resource_version);
        };
        next = format!("&continue={}", percent_encoded(&token));
    }
}

/// Reads one node from the API server itself and takes it into the cache if it is newer; none if
/// it is not there (which the watch takes out of the cache).
///
/// # Errors
/// It can't be said.
pub async fn read(
    kube: &Kube,
    cache: &NodeCache,
    name: &NodeName,
    deadline: Instant,
) -> Result<Option<std::sync::Arc<NodeFacts>>, CallError> {
    let call = Call {
        act: format!("reading of node {name}"),
        path: format!("/api/v1/nodes/{name}"),
        write: None,
        accept: "application/json",
    };
    let body = match kube.call(&call, deadline).await {
        Ok(body) => body,
        Err(CallError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let node = Decoder::new(Wanted::clone(&cache.wants().borrow().wanted))
        .node(&body)
        .map_err(|error| CallError::Unavailable {
            act: call.act,
            message: format!("the answer is no node: {error}"),
        })?;
    cache.put_if_newer(node.clone());
    Ok(Some(std::sync::Arc::new(node)))
}
