//! `GET /api/v1/watch`: the steps of incidents as they happen, as server-sent events.
//!
//! # Guarantees
//! - Each step that the caller asked for comes once and in order. One that went for age or room before it
//!   was sent is told by a `gap` with how far it reaches; `new_store` says that the store was lost, and the
//!   steps begin anew.
//! - A caller that reads slowly holds one page in memory, and no writer back.
//! - At most [`WATCHERS`] at a time, each for [`LONGEST`]: then the caller asks again from its last `id`, and
//!   its right to is looked at again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use event_store::{EventStore, ReadError, StoredTransition, TransitionsOf};
use health_event::NodeName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tracing::warn;

use super::asked::{PAGE, WatchQuery};
use super::failed::Failed;
use super::routes::ApiState;
use super::view;

/// Watches at a time.
const WATCHERS: usize = 64;
/// How long one lasts at most.
const LONGEST: Duration = Duration::from_mins(30);
/// A sign of life where nothing happens, so that a proxy keeps the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// By it a browser says where it stood (HTML, server-sent events).
const LAST_EVENT_ID: &str = "last-event-id";

/// What wakes watches, and how many there may be. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Watches {
    commits: watch::Receiver<()>,
    room: Arc<Semaphore>,
}

impl Watches {
    /// Over the commits of a store.
    pub fn of(store: &EventStore) -> Self {
        let (woken, commits) = watch::channel(());
        store.on_commit(Box::new(move |_| {
            woken.send_replace(());
        }));
        Self {
            commits,
            room: Arc::new(Semaphore::new(WATCHERS)),
        }
    }
}

/// Steps after `after` or the header `Last-Event-ID`, which counts more; without either from now on.
pub(super) async fn watch(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    asked: WatchQuery,
) -> Result<Response, Failed> {
    let room = Arc::clone(&state.watches.room);
    let permit = room.try_acquire_owned().map_err(|_| {
        let text = format!("{WATCHERS} watches are open, the most at a time; ask again later");
        Failed::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_watches", text)
    })?;
    let mut commits = state.watches.commits.clone();
    // What is committed from here on wakes, whatever is read below.
    commits.mark_unchanged();
    let last = state.context.store.stats()?.last_transition;
    let asked_for = last_event_id(&headers)?.or(asked.after).unwrap_or(last);
    let (sender, receiver) = mpsc::channel(1);
    // The numbers are those of an earlier store, which was lost.
    let is_other_store = asked_for > last;
    let after = if is_other_store { 0 } else { asked_for };
    if is_other_store {
        let event = Event::default().event("new_store").data("{}");
        // The channel is empty.
        let _ = sender.try_send(Ok(event));
    }
    let feed = Feed {
        state,
        node: asked.node,
        after,
        commits,
        sender,
        _permit: permit,
    };
    tokio::spawn(feed.run());
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(ReceiverStream::new(receiver))
        .keep_alive(keep_alive)
        .into_response())
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Failed> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| {
        let text =
            "header Last-Event-ID is no `id` of a step; want the last one that came, or none";
        Failed::new(StatusCode::BAD_REQUEST, "bad_last_event_id", text)
    })
}

struct Feed {
    state: Arc<ApiState>,
    node: Option<NodeName>,
    /// The last step that was sent, or passed by.
    after: u64,
    commits: watch::Receiver<()>,
    sender: mpsc::Sender<Result<Event, Infallible>>,
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    async fn run(mut self) {
        let stop = self.state.context.stop.clone();
        let end = Instant::now() + LONGEST;
        loop {
            tokio::select! {
                sent = self.send_new() => if !sent { return },
                () = stop.requested() => return,
                () = sleep_until(end) => return,
            }
            tokio::select! {
                // The store ends with the process.
                changed = self.commits.changed() => if changed.is_err() { return },
                () = self.sender.closed() => return,
                () = stop.requested() => return,
                () = sleep_until(end) => return,
            }
        }
    }

    /// Sends all that is there. False: nobody reads any more, or it can't be read.
    async fn send_new(&mut self) -> bool {
        loop {
            let page = match self.page() {
                Ok(page) => page,
                Err(error) => {
                    // The caller comes back and is told by the answer.
                    warn!(code = error.code(), %error, "a watch ends: the steps can't be read");
                    return false;
                }
            };
            let is_last = page.len() < PAGE;
            for step in page {
                if !self.send(step).await {
                    return false;
                }
            }
            if is_last {
                return true;
            }
        }
    }

    fn page(&self) -> Result<Vec<StoredTransition>, ReadError> {
        let of = match &self.node {
            Some(node) => TransitionsOf::Node(node),
            None => TransitionsOf::All,
        };
        self.state.context.store.transitions(of, self.after, PAGE)
    }

    async fn send(&mut self, step: StoredTransition) -> bool {
        let seq = step.seq;
        // Of all nodes the numbers follow each other.
        let next = self.after.saturating_add(1);
        if self.node.is_none() && seq > next {
            let gap = serde_json::json!({ "from": next, "to": seq - 1 });
            let event = Event::default().event("gap").data(gap.to_string());
            if self.sender.send(Ok(event)).await.is_err() {
                return false;
            }
        }
        self.after = seq;
        let data = serde_json::to_string(&view::step(step)).unwrap_or_default();
        let event = Event::default()
            .id(seq.to_string())
            .event("step")
            .data(data);
        self.sender.send(Ok(event)).await.is_ok()
    }
}
