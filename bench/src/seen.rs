//! What a client of its own sees of the nodes and of the Events about them, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1;
use kube::api::ObjectMeta;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use tokio::sync::broadcast;

/// Changes that a slow reader may be behind: more than a fleet's burst makes.
const BEHIND: usize = 65_536;
/// The pause after a broken watch.
const RETRY: Duration = Duration::from_millis(50);
/// How long the first list may take.
const FIRST: Duration = Duration::from_secs(30);

/// The few fields that are looked at: the whole object is ten times dearer to decode.
macro_rules! light {
    ($(#[$doc:meta])* $name:ident as $whole:ty { $($field:ident: $kind:ty),* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct $name {
            metadata: ObjectMeta,
            $(#[serde(default)] $field: $kind,)*
        }

        impl Resource for $name {
            type DynamicType = ();
            type Scope = <$whole as Resource>::Scope;
            fn kind(_: &()) -> std::borrow::Cow<'_, str> { <$whole>::kind(&()) }
            fn group(_: &()) -> std::borrow::Cow<'_, str> { <$whole>::group(&()) }
            fn version(_: &()) -> std::borrow::Cow<'_, str> { <$whole>::version(&()) }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> { <$whole>::plural(&()) }
            fn meta(&self) -> &ObjectMeta { &self.metadata }
            fn meta_mut(&mut self) -> &mut ObjectMeta { &mut self.metadata }
        }
    };
}

light!(
    /// A node.
    LightNode as v1::Node { spec: Spec, status: Status }
);
light!(
    /// A core/v1 Event.
    LightEvent as v1::Event { involved_object: Involved }
);

#[derive(Debug, Clone, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    unschedulable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Involved {
    #[serde(default)]
    name: String,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// The node as it now is: cordoned or not, and its conditions that are True.
    Node(bool, BTreeSet<String>),
    /// A new Event about it.
    Event,
}

/// One change.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// When it was seen.
    pub at: Instant,
    /// Node.
    pub node: String,
    /// What.
    pub what: What,
}

impl Change {
    /// Whether the node is cordoned, if this says so or not.
    pub(crate) fn cordoned(&self) -> Option<bool> {
        match &self.what {
            What::Node(cordoned, _) => Some(*cordoned),
            What::Event => None,
        }
    }

    /// Whether a condition of this type is True, if this says so or not.
    pub(crate) fn condition(&self, kind: &str) -> Option<bool> {
        match &self.what {
            What::Node(_, conditions) => Some(conditions.contains(kind)),
            What::Event => None,
        }
    }
}

/// The watches; they end with this.
#[derive(Debug)]
pub(crate) struct Seen {
    changes: broadcast::Sender<Change>,
    tasks: tokio::task::JoinSet<()>,
}

impl Seen {
    /// Starts watching and waits until what is there was read.
    ///
    /// # Errors
    /// The first list did not come in time.
    pub(crate) async fn start(client: &Client) -> anyhow::Result<Self> {
        let (changes, _) = broadcast::channel(BEHIND);
        let mut seen = Self {
            changes,
            tasks: tokio::task::JoinSet::new(),
        };
        let (nodes, events) = (Api::all(client.clone()), Api::all(client.clone()));
        let nodes = seen.follow(nodes, |node: LightNode| {
            let conditions = node.status.conditions.into_iter();
            let bad = conditions.filter(|c| c.status == "True").map(|c| c.kind);
            let what = What::Node(node.spec.unschedulable, bad.collect());
            (node.metadata.name.unwrap_or_default(), what)
        });
        let events = seen.follow(events, |event: LightEvent| {
            (event.involved_object.name, What::Event)
        });
        let both = async { (nodes.await, events.await) };
        let (nodes, events) = tokio::time::timeout(FIRST, both)
            .await
            .context("the first list of nodes and Events did not come")?;
        nodes.and(events).context("a watch ended at its start")?;
        Ok(seen)
    }

    fn follow<K, F>(&mut self, api: Api<K>, read: F) -> tokio::sync::oneshot::Receiver<()>
    where
        K: Resource<DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + 'static,
        F: Fn(K) -> (String, What) + Send + 'static,
    {
        let (listed, first) = tokio::sync::oneshot::channel();
        let changes = self.changes.clone();
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()));
            let mut listed = Some(listed);
            while let Some(event) = stream.next().await {
                match event {
                    Ok(watcher::Event::Apply(object)) => {
                        let at = Instant::now();
                        let (node, what) = read(object);
                        // Nobody may be listening at the moment.
                        changes.send(Change { at, node, what }).ok();
                    }
                    Ok(watcher::Event::InitDone) => {
                        if let Some(listed) = listed.take() {
                            listed.send(()).ok();
                        }
                    }
                    Ok(_) => {}
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        });
        first
    }

    /// Changes from now on.
    pub(crate) fn changes(&self) -> Changes {
        Changes(self.changes.subscribe())
    }
}

/// Changes since it was made.
#[derive(Debug)]
pub(crate) struct Changes(broadcast::Receiver<Change>);

impl Changes {
    /// The next one.
    ///
    /// # Errors
    /// None came in time, or too many came at once.
    pub(crate) async fn next(&mut self, deadline: Instant, what: &str) -> anyhow::Result<Change> {
        match tokio::time::timeout_at(deadline.into(), self.0.recv()).await {
            Ok(Ok(change)) => Ok(change),
            Ok(Err(error)) => bail!("waiting for {what}: {error}"),
            Err(_) => bail!("gave up waiting for {what}"),
        }
    }

    /// Waits until one node is cordoned or not; answers when that was seen.
    ///
    /// # Errors
    /// It was not, in time.
    pub(crate) async fn cordon(
        &mut self,
        node: &str,
        wanted: bool,
        time: Duration,
    ) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + time;
        let what = format!("node {node} to be cordoned: {wanted}");
        loop {
            let change = self.next(deadline, &what).await?;
            if change.node == node && change.cordoned() == Some(wanted) {
                return Ok(change.at);
            }
        }
    }

    /// Waits until each of the nodes had a change that `holds`; answers when it was seen of each,
    /// and calls `seen` with the number of nodes so far.
    ///
    /// # Errors
    /// Not all had, in time.
    pub(crate) async fn all(
        &mut self,
        nodes: &[String],
        what: &str,
        time: Duration,
        holds: impl Fn(&Change) -> bool,
        mut seen: impl FnMut(usize),
    ) -> anyhow::Result<BTreeMap<String, Instant>> {
        let deadline = Instant::now() + time;
        let wanted: BTreeSet<&str> = nodes.iter().map(String::as_str).collect();
        let mut times = BTreeMap::new();
        while times.len() < wanted.len() {
            let missing = wanted.len() - times.len();
            let what = format!("{missing} of {} nodes to {what}", wanted.len());
            let change = self.next(deadline, &what).await?;
            if wanted.contains(change.node.as_str())
                && !times.contains_key(&change.node)
                && holds(&change)
            {
                times.insert(change.node, change.at);
                seen(times.len());
            }
        }
        Ok(times)
    }
}

/// The last of some times; now if there are none.
pub(crate) fn last(times: &BTreeMap<String, Instant>) -> Instant {
    times.values().max().copied().unwrap_or_else(Instant::now)
}
