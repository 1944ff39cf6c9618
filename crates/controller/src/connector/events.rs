//! Follows the stored events: what is healthy, and which core/v1 Events there are to write.
//!
//! The name of an Event is a hash over what it says. So the first one is created, and each repeat,
//! also after a restart, meets it by name: the count is raised without a list.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decide::connector::{AggregationKey, EventPost, Limits, event_post};
use decide::gone::is_of_another;
use event_store::{Fingerprint, StoredEvent};
use futures::StreamExt as _;
use health_event::Subject;
use jiff::{SignedDuration, Timestamp};
use k8s_api::names;
use serde_json::{Value, json};
use telemetry::metrics::NodeEventLabel;
use tokio::sync::Notify;
use tracing::warn;

use super::conditions::seconds;
use super::healthy::Healthy;
use crate::context::Context;
use crate::kubernetes::{Call, CallError, Write, jittered};
use crate::lease::Leadership;
use crate::workers::Workers;

/// Stored events taken at a time.
pub const PAGE: usize = 500;
/// Calls at a time: enough for the 900 creates a second that an API server does.
pub const AT_ONCE: usize = 16;
/// Counts of Events that are remembered; a forgotten one is read before its count is raised.
const REMEMBERED: usize = 16_384;
/// The position is stored after this long without more.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// And after this many events.
const TELL_AT: u64 = 2_000;
/// Name of the consumer in the store.
const CONSUMER: &str = "connector";
/// Older than this nothing becomes an Event: it is how long an API server keeps them.
pub(super) const OLDEST: SignedDuration = SignedDuration::from_hours(1);
/// Namespace of Events about nodes, as in the reference.
const NAMESPACE: &str = "default";
/// Longest time for one call with its repetitions.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause after a page that could not be written; it doubles.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The follower.
pub(super) struct Follower {
    pub(super) context: Context,
    pub(super) leadership: Leadership,
    pub(super) limits: Limits,
    pub(super) healthy: Healthy,
    pub(super) workers: Workers,
    pub(super) posts: bool,
    pub(super) more: Arc<Notify>,
    pub(super) more_steps: Arc<Notify>,
    counts: Mutex<Counts>,
}

/// The last known counts, oldest forgotten first.
#[derive(Debug, Default)]
struct Counts {
    by_name: HashMap<String, u64>,
    order: VecDeque<String>,
}

impl Counts {
    fn get(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    fn set(&mut self, name: &str, count: u64) {
        if self.by_name.insert(name.to_owned(), count).is_none() {
            self.order.push_back(name.to_owned());
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.by_name.remove(&oldest);
            }
        }
    }
}

/// One Event with how often it was said in a page.
pub(super) struct Said {
    pub(super) post: EventPost,
    /// Positions of what says it, in its own row of numbers, rising.
    pub(super) seqs: Vec<u64>,
    last: Timestamp,
}

impl Said {
    /// It is said once more.
    pub(super) fn add(all: &mut BTreeMap<AggregationKey, Self>, post: EventPost, seq: u64) {
        let at = post.at;
        let entry = all.entry(post.key()).or_insert(Self {
            post,
            seqs: Vec::new(),
            last: at,
        });
        entry.seqs.push(seq);
        entry.last = entry.last.max(at);
    }

    fn times(&self) -> u64 {
        u64::try_from(self.seqs.len()).unwrap_or(u64::MAX)
    }

    fn last_seq(&self) -> String {
        self.seqs.last().copied().unwrap_or_default().to_string()
    }
}

/// How many events behind a position are not in its page any more.
fn missed(after: u64, page: &[StoredEvent]) -> u64 {
    let last = page.last().map_or(after, |event| event.seq);
    let there = u64::try_from(page.len()).unwrap_or(u64::MAX);
    last.saturating_sub(after).saturating_sub(there)
}

impl Follower {
    pub(super) fn new(
        context: Context,
        leadership: Leadership,
        limits: Limits,
        healthy: Healthy,
        workers: Workers,
        more: Arc<Notify>,
    ) -> Self {
        let posts = context.config.connector.events;
        Self {
            context,
            leadership,
            limits,
            healthy,
            workers,
            posts,
            more,
            more_steps: Arc::default(),
            counts: Mutex::default(),
        }
    }

    /// Follows until the future is dropped.
    pub(super) async fn run(&self) {
        let mut position = self.start();
        let mut told = position;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.page(position).await {
                Ok(Some(next)) => {
                    position = next;
                    pause = FIRST_PAUSE;
                }
                Ok(None) if told == position => self.more.notified().await,
                Ok(None) => {
                    // Told late, so that its commit stands before nobody's cordon.
                    tokio::select! {
                        () = self.more.notified() => {}
                        () = tokio::time::sleep(TELL_AFTER) => told = self.tell(position).await,
                    }
                }
                Err(why) => {
                    warn!(
                        position,
                        why, "Events are not written; the page is tried again"
                    );
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            if position.saturating_sub(told) >= TELL_AT {
                told = self.tell(position).await;
            }
        }
    }

    /// Notes in the store how far we are; answers that. What is not noted is read again after a
    /// restart, and found to be counted by the number on the Event.
    async fn tell(&self, position: u64) -> u64 {
        let store = &self.context.store;
        if let Err(error) = store
            .consumer_advance(CONSUMER, position, Timestamp::now())
            .await
        {
            warn!(position, why = %error, "the position of the connector is not stored");
        }
        position
    }

    /// Where to begin: behind what was completed. What went meanwhile is told with the next page.
    fn start(&self) -> u64 {
        let store = &self.context.store;
        match store.consumer_position(CONSUMER) {
            Ok(Some(consumer)) => consumer.seq,
            Ok(None) | Err(_) => 0,
        }
    }

    /// Tells what retention took before it was seen: the numbers of stored events have no holes.
    fn tell_missed(&self, after: u64, page: &[StoredEvent]) {
        let missed = missed(after, page);
        let (Some(last), true) = (page.last(), missed > 0 && after > 0) else {
            return;
        };
        self.context.metrics.connector_missed.inc_by(missed);
        warn!(
            from = after + 1,
            to = last.seq,
            missed,
            "events went for the store's size before they became Events of their nodes; what is open \
             is not touched by it: conditions are made of the faults"
        );
    }

    /// One page; none if there is nothing.
    async fn page(&self, after: u64) -> Result<Option<u64>, String> {
        let store = &self.context.store;
        let page = store
            .events(None, after, PAGE)
            .map_err(|error| error.to_string())?;
        let Some(last) = page.last().map(|event| event.seq) else {
            return Ok(None);
        };
        let mut said: BTreeMap<AggregationKey, Said> = BTreeMap::new();
        for stored in &page {
            self.take(stored, &mut said);
        }
        if self.posts {
            self.write_all(said).await?;
        }
        self.tell_missed(after, &page);
        Ok(Some(last))
    }

    fn take(&self, stored: &StoredEvent, said: &mut BTreeMap<AggregationKey, Said>) {
        // Conditions and Events of nodes say nothing of pools.
        let Subject::Node(node) = &stored.subject else {
            return;
        };
        // Another machine's words are not about this node (`docs/decisions/`, 15).
        let object = self.context.nodes.get(node);
        if object.is_some_and(|object| is_of_another(&stored.machine, &object.system_uuid)) {
            return;
        }
        let acts = stored.strategy == health_event::ProcessingStrategy::ExecuteRemediation;
        if acts {
            let healthy = stored.healthy.then_some(stored.generated_at);
            if self.healthy.note(node, &stored.check_name, healthy) {
                self.workers.wake(node);
            }
        }
        let is_news = Timestamp::now().duration_since(stored.received_at) < OLDEST;
        if !acts || stored.healthy || stored.fatal || !is_news {
            return;
        }
        // What the store keeps was rendered by us; an unreadable body is another version's.
        let Ok(event) = wire::decode_body(&stored.body) else {
            return;
        };
        let Some(post) = event_post(&event, self.limits, stored.generated_at) else {
            return;
        };
        Said::add(said, post, stored.seq);
    }

    pub(super) async fn write_all(
        &self,
        said: BTreeMap<AggregationKey, Said>,
    ) -> Result<(), String> {
        let mut results = futures::stream::iter(said.into_values())
            .map(|said| async move { self.write(&said).await })
            .buffer_unordered(AT_ONCE);
        let mut failed = None;
        while let Some(result) = results.next().await {
            if let Err(error) = result {
                failed = Some(error.to_string());
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Creates the Event, or raises its count.
    async fn write(&self, said: &Said) -> Result<(), CallError> {
        let name = event_name(&said.post);
        let started = tokio::time::Instant::now();
        let known = self
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&name);
        let (operation, result) = match known {
            Some(count) => ("update", self.raise(&name, count, said).await),
            None => ("create", self.create(&name, said).await),
        };
        let done = match &result {
            Ok(()) => "success",
            Err(_) => "failed",
        };
        let metrics = &self.context.metrics;
        let label = NodeEventLabel {
            node_name: said.post.node.clone(),
            operation: operation.into(),
            status: done.into(),
        };
        metrics.node_event_operations.get_or_create(&label).inc();
        metrics
            .node_event_ms
            .observe(started.elapsed().as_secs_f64() * 1_000.0);
        match result {
            // A refusal of this one Event must not hold up the others for ever.
            Err(error @ CallError::Refused { .. }) => {
                warn!(event = name, why = %error, "an Event is refused and left out");
                Ok(())
            }
            other => other,
        }
    }

    async fn create(&self, name: &str, said: &Said) -> Result<(), CallError> {
        let body = event_body(name, said);
        let path = format!("/api/v1/namespaces/{NAMESPACE}/events");
        match self
            .send("creation", name, path, Some((Write::Event, &body)))
            .await
        {
            Ok(_) => {
                self.remember(name, said.times());
                Ok(())
            }
            // It is there since an earlier life of ours: its count is read, and raised.
            Err(CallError::Changed { .. }) => {
                let answer = self.send("reading", name, event_path(name), None).await?;
                let there = There::parse(&answer);
                let new = said.seqs.iter().filter(|seq| **seq > there.seq).count();
                let new = u64::try_from(new).unwrap_or(u64::MAX);
                if new == 0 {
                    self.remember(name, there.count);
                    return Ok(());
                }
                self.raise_to(name, there.count + new, said).await
            }
            Err(error) => Err(error),
        }
    }

    async fn raise_to(&self, name: &str, count: u64, said: &Said) -> Result<(), CallError> {
        let patch = json!({
            "metadata": { "annotations": { names::EVENT_SEQ.text: said.last_seq() } },
            "count": count,
            "lastTimestamp": seconds(said.last),
        });
        let write = Some((Write::EventCount, &patch));
        self.send("raising of the count", name, event_path(name), write)
            .await?;
        self.remember(name, count);
        Ok(())
    }

    async fn raise(&self, name: &str, count: u64, said: &Said) -> Result<(), CallError> {
        match self.raise_to(name, count + said.times(), said).await {
            // It ran out (an hour by default): it begins anew.
            Err(CallError::NotFound { .. }) => self.create(name, said).await,
            other => other,
        }
    }

    async fn send(
        &self,
        act: &str,
        name: &str,
        path: String,
        write: Option<(Write, &Value)>,
    ) -> Result<Vec<u8>, CallError> {
        let act = format!("{act} of Event {NAMESPACE}/{name}");
        let Some(deadline) = self.leadership.write_deadline(CALL_TIMEOUT) else {
            return Err(CallError::Unavailable {
                act,
                message: "we do not lead".to_owned(),
            });
        };
        let call = Call {
            act,
            path,
            write,
            accept: "application/json",
        };
        self.context.kube.call(&call, deadline).await
    }

    fn remember(&self, name: &str, count: u64) {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .set(name, count);
    }
}

/// What an Event that is there already says.
#[derive(Debug, PartialEq, Eq)]
struct There {
    count: u64,
    /// The last stored event that it counts; 0 if it does not say.
    seq: u64,
}

impl There {
    fn parse(body: &[u8]) -> Self {
        let event: Value = serde_json::from_slice(body).unwrap_or_default();
        let seq = &event["metadata"]["annotations"][names::EVENT_SEQ.text];
        Self {
            count: event["count"].as_u64().unwrap_or_default(),
            seq: seq
                .as_str()
                .and_then(|seq| seq.parse().ok())
                .unwrap_or_default(),
        }
    }
}

fn event_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/events/{name}")
}

/// `<node>.<16 hex digits>`, the form of the reference's names; the digits are a hash over what
/// makes two Events the same.
fn event_name(post: &EventPost) -> String {
    let key = format!(
        "{}\0{}\0{}\0{}",
        post.node, post.kind, post.reason, post.message
    );
    let hash = Fingerprint::of(key.as_bytes()).to_string();
    let node = &post.node[..post.node.len().min(253 - 17)];
    format!("{}.{}", node.trim_end_matches(['.', '-']), &hash[..16])
}

fn event_body(name: &str, said: &Said) -> Value {
    let post = &said.post;
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": { names::EVENT_SEQ.text: said.last_seq() },
        },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Node", "name": post.node, "uid": post.node,
        },
        "type": post.kind,
        "reason": post.reason,
        "message": post.message,
        "source": { "component": post.component, "host": post.node },
        "reportingComponent": post.component,
        "reportingInstance": post.node,
        "firstTimestamp": seconds(post.at),
        "lastTimestamp": seconds(said.last),
        "count": said.times(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Said {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        Said {
            post: EventPost {
                node: "gpu-1".into(),
                kind: "GpuPowerWatch".into(),
                reason: "GpuPowerWatchIsNotHealthy".into(),
                message: "GPU:0 m Recommended Action=NONE;".into(),
                component: "gpu-health-monitor".into(),
                at,
            },
            seqs: vec![7, 9],
            last: at,
        }
    }

    #[test]
    fn what_retention_took_between_and_before_is_missed() {
        let at = said().last;
        let stored = |seq| StoredEvent {
            seq,
            sender: health_event::Sender::agent("gpu-1"),
            id: String::new(),
            subject: Subject::Cluster,
            machine: String::new(),
            boot: health_event::BootId::new(""),
            generated_at: at,
            received_at: at,
            strategy: health_event::ProcessingStrategy::ExecuteRemediation,
            healthy: false,
            fatal: false,
            agent: String::new(),
            check_name: String::new(),
            component_class: String::new(),
            body: Vec::new(),
        };
        let table = [
            (4, vec![], 0),
            (4, vec![5, 6], 0),
            (4, vec![11, 12], 6),
            (4, vec![5, 7, 10], 3),
        ];
        for (after, seqs, want) in table {
            let page: Vec<StoredEvent> = seqs.iter().copied().map(stored).collect();
            assert_eq!(missed(after, &page), want, "{after} {seqs:?}");
        }
    }

    #[test]
    fn the_same_words_have_the_same_name_and_others_another() {
        let (one, mut two) = (said(), said());
        assert_eq!(event_name(&one.post), event_name(&two.post));
        assert_eq!(event_name(&one.post).len(), "gpu-1.".len() + 16);
        two.post.message.push('x');
        assert_ne!(event_name(&one.post), event_name(&two.post));
        two.post.node = "n".repeat(253);
        assert_eq!(event_name(&two.post).len(), 253);
    }

    #[test]
    fn an_event_reads_as_the_references() {
        let body = event_body("gpu-1.0", &said());
        assert_eq!(body["type"], "GpuPowerWatch");
        assert_eq!(body["involvedObject"]["uid"], "gpu-1");
        assert_eq!(body["count"], 2);
        let there = There::parse(body.to_string().as_bytes());
        assert_eq!(there, There { count: 2, seq: 9 });
        assert_eq!(
            body["source"],
            json!({ "component": "gpu-health-monitor", "host": "gpu-1" })
        );
        assert_eq!(body["firstTimestamp"], "2026-01-02T03:04:05Z");
    }

    #[test]
    fn remembered_counts_are_bounded() {
        let mut counts = Counts::default();
        for i in 0..REMEMBERED + 10 {
            counts.set(&format!("{i}"), 1);
        }
        assert_eq!(
            (counts.by_name.len(), counts.order.len()),
            (REMEMBERED, REMEMBERED)
        );
        assert_eq!(counts.get("0"), None);
    }
}
