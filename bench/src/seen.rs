//! What a client of its own sees of the nodes, of the Events about them, of their pods and of the
//! orders to reboot them, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_api::{names, reboot_node};
use k8s_openapi::api::core::v1;
use kube::api::ObjectMeta;
use kube::core::ClusterResourceScope;
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

light!(
    /// A pod.
    LightPod as v1::Pod { spec: PodSpec }
);

/// An order to reboot, of the API group that it stands in.
macro_rules! order {
    ($(#[$doc:meta])* $name:ident in $group:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize)]
        struct $name {
            metadata: ObjectMeta,
            #[serde(default)]
            spec: PodSpec,
            #[serde(default)]
            status: OrderStatus,
        }

        impl Resource for $name {
            type DynamicType = ();
            type Scope = ClusterResourceScope;
            fn kind(_: &()) -> std::borrow::Cow<'_, str> { reboot_node::KIND.into() }
            fn group(_: &()) -> std::borrow::Cow<'_, str> { $group.into() }
            fn version(_: &()) -> std::borrow::Cow<'_, str> { "v1alpha1".into() }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> { "rebootnodes".into() }
            fn meta(&self) -> &ObjectMeta { &self.metadata }
            fn meta_mut(&mut self) -> &mut ObjectMeta { &mut self.metadata }
        }

        impl From<$name> for (String, What) {
            fn from(order: $name) -> Self {
                let told = !order.status.conditions.is_empty();
                let over = order.status.completion_time.is_some();
                (order.spec.node_name, What::Order { told, over })
            }
        }
    };
}

order!(
    /// What Warden makes.
    LightOrder in ORDERS
);
order!(
    /// What the raw limit makes.
    RawOrder in RAW_ORDERS
);

/// API group of the orders.
pub(crate) const ORDERS: &str = "janitor.dgxc.nvidia.com";
/// API group of orders that nobody but the raw limit knows.
pub(crate) const RAW_ORDERS: &str = "janitor.rawlim.com";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    unschedulable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    node_info: NodeInfo,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot: String,
}

/// Of pods and of orders.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OrderStatus {
    completion_time: Option<serde::de::IgnoredAny>,
    conditions: Vec<serde::de::IgnoredAny>,
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
    /// The node as it now is.
    Node(NodeLook),
    /// A new Event about it.
    Event,
    /// A pod on it is gone; whether it was one of the raw limit.
    PodGone {
        /// It was.
        raw: bool,
    },
    /// An order to reboot it: whether anything was said about it, and whether it is over.
    Order {
        /// It has a condition.
        told: bool,
        /// It is at its end.
        over: bool,
    },
}

/// What is looked at of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLook {
    /// Out of scheduling.
    pub cordoned: bool,
    /// Conditions that are True.
    pub holds: BTreeSet<String>,
    /// Boot id.
    pub boot: String,
    /// Warden's label of the state, empty without it.
    pub state: String,
    /// The label that the raw limit sets in its place.
    pub raw_state: String,
}

/// The label of the raw limit in place of the state's.
pub(crate) const RAW_STATE: &str = "dgxc.rawlim.com/nvsentinel-state";

impl From<LightNode> for NodeLook {
    fn from(mut node: LightNode) -> Self {
        let conditions = node.status.conditions.into_iter();
        let holds = conditions.filter(|c| c.status == "True").map(|c| c.kind);
        let labels = node.metadata.labels.as_mut();
        let (state, raw_state) = labels.map_or_else(Default::default, |labels| {
            let mut take = |key: &str| labels.remove(key).unwrap_or_default();
            (take(names::STATE_LABEL.text), take(RAW_STATE))
        });
        Self {
            cordoned: node.spec.unschedulable,
            holds: holds.collect(),
            boot: node.status.node_info.boot,
            state,
            raw_state,
        }
    }
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
        self.node_look().map(|look| look.cordoned)
    }

    /// Whether a condition of this type is True, if this says so or not.
    pub(crate) fn condition(&self, kind: &str) -> Option<bool> {
        self.node_look().map(|look| look.holds.contains(kind))
    }

    /// The node, if this is one.
    pub(crate) fn node_look(&self) -> Option<&NodeLook> {
        match &self.what {
            What::Node(look) => Some(look),
            What::Event | What::PodGone { .. } | What::Order { .. } => None,
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
        let nodes = seen.follow(nodes, |mut node: LightNode, gone| {
            let name = node.metadata.name.take().unwrap_or_default();
            (!gone).then(|| (name, What::Node(node.into())))
        });
        let events = seen.follow(events, |event: LightEvent, gone| {
            (!gone).then_some((event.involved_object.name, What::Event))
        });
        let both = async { (nodes.await, events.await) };
        let (nodes, events) = tokio::time::timeout(FIRST, both)
            .await
            .context("the first list of nodes and Events did not come")?;
        nodes.and(events).context("a watch ended at its start")?;
        Ok(seen)
    }

    /// Watches the pods of a namespace and the orders to reboot, and those of the raw limit too.
    ///
    /// # Errors
    /// The first lists did not come in time.
    pub(crate) async fn watch_work(
        &mut self,
        client: &Client,
        [namespace, raw]: [&str; 2],
    ) -> anyhow::Result<()> {
        let mut pods = |namespace, raw| {
            let pods = Api::namespaced(client.clone(), namespace);
            self.follow(pods, move |pod: LightPod, gone| {
                gone.then_some((pod.spec.node_name, What::PodGone { raw }))
            })
        };
        let (pods, raw_pods) = (pods(namespace, false), pods(raw, true));
        let orders = self.follow(Api::all(client.clone()), |order: LightOrder, gone| {
            (!gone).then(|| order.into())
        });
        let raw = self.follow(Api::all(client.clone()), |order: RawOrder, gone| {
            (!gone).then(|| order.into())
        });
        let all = futures::future::try_join_all([pods, raw_pods, orders, raw]);
        let listed = tokio::time::timeout(FIRST, all)
            .await
            .context("the first list of pods and orders did not come")?;
        listed.map(drop).context("a watch ended at its start")
    }

    fn follow<K, F>(&mut self, api: Api<K>, read: F) -> tokio::sync::oneshot::Receiver<()>
    where
        K: Resource<DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + 'static,
        F: Fn(K, bool) -> Option<(String, What)> + Send + 'static,
    {
        let (listed, first) = tokio::sync::oneshot::channel();
        let changes = self.changes.clone();
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()));
            let mut listed = Some(listed);
            while let Some(event) = stream.next().await {
                let at = Instant::now();
                let change = match event {
                    Ok(watcher::Event::Apply(object)) => read(object, false),
                    Ok(watcher::Event::Delete(object)) => read(object, true),
                    Ok(watcher::Event::InitDone) => {
                        if let Some(listed) = listed.take() {
                            listed.send(()).ok();
                        }
                        None
                    }
                    Ok(_) => None,
                    Err(_) => {
                        tokio::time::sleep(RETRY).await;
                        None
                    }
                };
                if let Some((node, what)) = change {
                    // Nobody may be listening at the moment.
                    changes.send(Change { at, node, what }).ok();
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
