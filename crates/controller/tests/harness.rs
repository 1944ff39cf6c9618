//! A control plane that the tests share, one after the other, and a controller in this process.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use controller::config::Config;
use controller::context::Context;
use controller::kubernetes::{self, Kube};
use controller::lease::Leadership;
use controller::nodes::{self, NodeCache};
use controller::reports::Reports;
use controller::requests::{self, Requests};
use controller::workers::WakeAll;
use controller::{connector, drain, quarantine, stop};
use event_store::{EventStore, Fingerprint, NewEvent, Options, Outcome};
use health_event::{Entity, HealthEvent, NodeName, Sender, Subject};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use telemetry::{ControllerMetrics, Readiness};
use testbed::{Component, NodeSpec, Testbed, wait_for};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::task::JoinSet;

/// Anything that should happen does so within milliseconds; this only ends a failed test.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// The shared control plane, for one test at a time: a controller looks at all nodes.
pub(crate) struct Cluster {
    pub(crate) testbed: &'static Testbed,
    pub(crate) nodes: Api<Node>,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Waits for its turn, and starts with these ready nodes and no others.
    pub(crate) async fn with_nodes(names: &[&str]) -> Self {
        static TESTBED: OnceCell<Testbed> = OnceCell::const_new();
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let start = || {
            let options = testbed::Options {
                audit_log: true,
                ..testbed::Options::default()
            };
            Testbed::start(options)
        };
        let testbed = TESTBED
            .get_or_try_init(start)
            .await
            .expect("the testbed starts");
        let cluster = Self {
            testbed,
            nodes: Api::all(testbed.admin()),
            _turn: turn,
        };
        for node in cluster
            .nodes
            .list(&kube::api::ListParams::default())
            .await
            .unwrap()
        {
            cluster.delete(&node.metadata.name.unwrap()).await;
        }
        // What a test left that failed would keep all others from acting.
        let now = DeleteParams::default();
        Api::<Deployment>::namespaced(testbed.admin(), "default")
            .delete_collection(&now, &kube::api::ListParams::default())
            .await
            .unwrap();
        // The Lease of a controller that an earlier test dropped would have to run out first.
        let leases: Api<Lease> = Api::namespaced(testbed.admin(), "warden");
        match leases.delete("warden-controller", &now).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("{error}"),
        }
        cluster.add(names).await;
        cluster
    }

    pub(crate) async fn add(&self, names: &[&str]) {
        let spec = |name: &&str| NodeSpec {
            system_uuid: crate::voice::machine(name),
            ..NodeSpec::new(*name)
        };
        let specs: Vec<NodeSpec> = names.iter().map(spec).collect();
        self.testbed.add_nodes(&specs).await.unwrap();
        self.testbed
            .wait_nodes_ready(names, Duration::from_mins(1))
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        // Gone already is gone.
        let _ = self.nodes.delete(name, &DeleteParams::default()).await;
        wait_for("the node to go", SOON, || async {
            Ok(self.nodes.get_opt(name).await?.is_none().then_some(()))
        })
        .await
        .unwrap();
    }

    /// Starts the API server again, and what would else wait half a minute to notice.
    pub(crate) async fn start_api_server(&self) {
        self.testbed
            .start_component(Component::ApiServer)
            .await
            .unwrap();
        self.testbed
            .restart(Component::ControllerManager)
            .await
            .unwrap();
        self.testbed.restart(Component::Kwok).await.unwrap();
    }

    pub(crate) async fn get(&self, name: &str) -> Node {
        self.nodes.get(name).await.unwrap()
    }

    /// A person's or another program's write.
    pub(crate) async fn merge(&self, name: &str, patch: Value) {
        self.nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Waits until the node is as it should be.
    pub(crate) async fn until(&self, name: &str, what: &str, is: impl Fn(&Node) -> bool) -> Node {
        wait_for(format!("{name}: {what}"), SOON, || async {
            let node = self.nodes.get(name).await?;
            if is(&node) {
                return Ok(Some(node));
            }
            anyhow::bail!("{}", shown(&node))
        })
        .await
        .unwrap()
    }
}

/// What a test's failure should show of a node.
fn shown(node: &Node) -> String {
    json!({ "metadata": {
                "uid": node.metadata.uid, "labels": node.metadata.labels,
                "annotations": node.metadata.annotations },
            "spec": node.spec })
    .to_string()
}

pub(crate) fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

pub(crate) fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

pub(crate) fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Keys of the taints but the one that the node controller keeps in step with a cordon.
pub(crate) fn taint_keys(node: &Node) -> Vec<&str> {
    let spec = node.spec.as_ref().unwrap();
    let keys = spec.taints.iter().flatten().map(|taint| taint.key.as_str());
    keys.filter(|key| *key != "node.kubernetes.io/unschedulable")
        .collect()
}

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<(&'a str, &'a str)> {
    let status = node.status.as_ref()?;
    let condition = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == kind)?;
    Some((
        condition.status.as_str(),
        condition.message.as_deref().unwrap_or_default(),
    ))
}

/// Whether anything of ours but records is on the node.
pub(crate) fn is_marked(node: &Node) -> bool {
    let keys = [
        "warden.dev/incident",
        "quarantineHealthEvent",
        "quarantineHealthEventIsCordoned",
    ];
    keys.iter().any(|key| annotation(node, key).is_some())
        || label(node, "dgxc.nvidia.com/nvsentinel-state").is_some()
}

/// A controller in this process; dropped, it stops as if killed.
pub(crate) struct Controller {
    pub(crate) context: Context,
    pub(crate) requests: Requests,
    stopper: stop::Stopper,
    tasks: JoinSet<()>,
    watch: tokio::task::JoinHandle<()>,
}

/// Cordons at once on fatal events of check `Test`, taints on check `Taint`, does both on `Both`.
pub(crate) const RULES: &str = r#"
    profile = "cordon"
    [quarantine]
    label-prefix = "k8s.nvidia.com/"
    first_action_delay = "0s"
    [quarantine.circuitBreaker]
    enabled = false
    [[quarantine.rule-sets]]
    name = "cordon-test"
    [[quarantine.rule-sets.match.any]]
    kind = "HealthEvent"
    expression = "event.checkName in ['Test', 'Both'] && event.isFatal == true"
    [quarantine.rule-sets.cordon]
    shouldCordon = true
    [[quarantine.rule-sets]]
    name = "taint-test"
    [[quarantine.rule-sets.match.any]]
    kind = "HealthEvent"
    expression = "event.checkName in ['Taint', 'Both'] && event.isFatal == true"
    [quarantine.rule-sets.taint]
    key = "warden.test/taint"
    value = "bad"
    effect = "NoSchedule"
"#;

impl Drop for Controller {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Controller {
    pub(crate) async fn start(cluster: &Cluster, store: &Path) -> Self {
        Self::start_with(cluster, store, RULES).await
    }

    pub(crate) async fn start_with(cluster: &Cluster, store: &Path, config: &str) -> Self {
        let config = Arc::new(Config::parse(config).unwrap_or_else(|error| panic!("{error}")));
        let settings = kubernetes::config(Some(&cluster.testbed.kubeconfig()))
            .await
            .unwrap();
        let kube = Kube::new(kubernetes::client(&settings).unwrap());
        let store = EventStore::open(store, Options::default()).unwrap();
        let fencing = store.fencing().unwrap() + 1;
        store.set_fencing(fencing).await.unwrap();
        let (stopper, stop) = stop::channel();
        let wakes = WakeAll::default();
        let reports = Reports::new(
            store.clone(),
            fencing,
            wakes.clone(),
            Duration::from_mins(1),
        );
        let rules = quarantine::rule_sets(&config.quarantine).unwrap();
        let wanted = quarantine::wanted(&config.quarantine, &rules);
        let context = Context {
            nodes: NodeCache::new(quarantine::pools(&config.quarantine), wanted),
            pods: controller::pods::Pods::default(),
            reboots: controller::reboots::Reboots::default(),
            // No test is to be fast enough for the usual bound.
            orders: controller::orders::Orders::new(SignedDuration::from_hours(1)),
            stages: controller::stages::Stages::default(),
            config,
            file: controller::file::ConfigFile::default(),
            store,
            kube,
            reports,
            refusals: controller::refusals::Refusals::default(),
            wakes: wakes.clone(),
            metrics: Arc::new(ControllerMetrics::new()),
            readiness: Readiness::default(),
            stop,
            fencing,
            namespace: "default".to_owned(),
        };
        let woken = wakes.clone();
        context.store.on_commit(Box::new(move |commit| {
            commit.nodes.iter().for_each(|node| woken.wake(node));
        }));
        let leadership = Leadership::unguarded(fencing);
        let (requests, asked) = requests::channel();
        let mut tasks = JoinSet::new();
        let modules = context.clone();
        let watch = watch(&context);
        if context.config.quarantine.enabled {
            let (context, leadership) = (modules.clone(), leadership.clone());
            tasks.spawn(async move {
                quarantine::run(context, leadership, asked).await.unwrap();
            });
        }
        if context.config.remediation.enabled {
            let (of_repair, of_watch) = (modules.clone(), modules.clone());
            let leads = leadership.clone();
            tasks.spawn(async move {
                let run = controller::remediation::run(of_repair, leads);
                run.await.unwrap();
            });
            tasks.spawn(async move { match controller::reboots::run(&of_watch).await {} });
        }
        if context.config.drain.enabled {
            let (of_drain, leads) = (modules.clone(), leadership.clone());
            tasks.spawn(async move { drain::run(of_drain, leads).await.unwrap() });
        }
        if context.config.connector.enabled {
            tasks.spawn(async move { connector::run(modules, leadership).await.unwrap() });
        }
        let controller = Self {
            context,
            requests,
            stopper,
            tasks,
            watch,
        };
        tokio::time::timeout(SOON, controller.context.nodes.synced())
            .await
            .unwrap();
        controller
    }

    /// From now on the cache shows the nodes as they are now.
    pub(crate) async fn freeze(&mut self) {
        self.watch.abort();
        while !self.watch.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// The cache follows again.
    pub(crate) fn thaw(&mut self) {
        self.watch = watch(&self.context);
    }

    /// Ends it with nothing finished, as a kill would.
    pub(crate) async fn kill(mut self) {
        self.tasks.shutdown().await;
        self.freeze().await;
        self.stopper.stop();
        self.context.store.close();
    }

    pub(crate) async fn append(&self, event: HealthEvent) -> Outcome {
        let monitor = Sender::service_account("monitoring", "monitor");
        self.append_as(monitor, event).await
    }

    /// Stores what another sender says.
    pub(crate) async fn append_as(&self, sender: Sender, event: HealthEvent) -> Outcome {
        let node = NodeName::new(&event.node_name).unwrap();
        let body = wire::encode_body(&event);
        let machine = self
            .context
            .nodes
            .get(&node)
            .map(|node| node.system_uuid.to_string());
        let new = NewEvent {
            sender,
            subject: Subject::Node(node),
            machine: machine.unwrap_or_default(),
            order: None,
            received_at: Timestamp::now(),
            fingerprint: Fingerprint::of(&body),
            body,
            asserted_by_agent: false,
            newest_counts: false,
            inclusive: false,
            out_of_turn: false,
            standing: event_store::Standing::Counts,
            event,
        };
        self.context.store.append(vec![new]).await.unwrap()[0].outcome
    }

    /// Stores an event about a node that nobody is at work on, and waits until it was decided
    /// about: one turn of quarantine's workers, which begins after the commit.
    pub(crate) async fn decided(&self, event: HealthEvent) {
        let turns = || {
            let page = self.metrics();
            let count = "fault_quarantine_event_handling_duration_seconds_count ";
            let line = page.lines().find_map(|line| line.strip_prefix(count));
            line.and_then(|count| count.parse::<u64>().ok()).unwrap()
        };
        let before = turns();
        self.append(event).await;
        wait_for("the decision", SOON, || async {
            Ok((turns() > before).then_some(()))
        })
        .await
        .unwrap();
    }

    /// The page of metrics.
    pub(crate) fn metrics(&self) -> String {
        self.context.metrics.encode()
    }

    /// Waits until the page of metrics has this line.
    pub(crate) async fn until_metric(&self, line: &str) {
        wait_for(format!("the metric {line}"), SOON, || async {
            let page = self.metrics();
            anyhow::ensure!(page.lines().any(|l| l == line), "{page}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until a counter has come to this or beyond: one that goes on may pass a value unseen.
    pub(crate) async fn until_counted(&self, counter: &str, least: u64) {
        wait_for(format!("{counter} to reach {least}"), SOON, || async {
            let page = self.metrics();
            let mut lines = page.lines();
            let value = lines.find_map(|line| line.strip_prefix(counter)?.trim().parse().ok());
            anyhow::ensure!(value.is_some_and(|value: u64| value >= least), "{page}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until the node has no open incident, and answers how the last one ended.
    pub(crate) async fn until_closed(&self, node: &str) -> String {
        let name = NodeName::new(node).unwrap();
        wait_for(format!("{node}: no open incident"), SOON, || async {
            let open = self.context.store.open_incidents_of(&name)?;
            let filter = event_store::IncidentFilter {
                node: Some(name.clone()),
                ..event_store::IncidentFilter::default()
            };
            let last = self.context.store.incidents(&filter, 1)?;
            let closed = last
                .first()
                .map(|incident| format!("{:?}", incident.quarantine));
            Ok(if open.is_empty() { closed } else { None })
        })
        .await
        .unwrap()
    }

    /// Waits for a state of the node's incident.
    pub(crate) async fn until_state(&self, node: &str, state: &str) {
        let name = NodeName::new(node).unwrap();
        wait_for(format!("{node}: {state}"), SOON, || async {
            let open = self.context.store.open_incidents_of(&name)?;
            let is = open
                .iter()
                .any(|incident| incident.quarantine.as_str() == state);
            anyhow::ensure!(
                is,
                "{:?}",
                open.iter().map(|i| &i.quarantine).collect::<Vec<_>>()
            );
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

fn watch(context: &Context) -> tokio::task::JoinHandle<()> {
    let context = context.clone();
    tokio::spawn(async move {
        let Context {
            kube, nodes, wakes, ..
        } = &context;
        nodes::watch::run(kube, nodes, |node| wakes.wake(node)).await;
    })
}

/// A fatal event of one GPU.
pub(crate) fn fatal(node: &str, check: &str, gpu: &str) -> HealthEvent {
    HealthEvent {
        version: 1,
        agent: "test-monitor".to_owned(),
        component_class: "GPU".to_owned(),
        check_name: check.to_owned(),
        is_fatal: true,
        message: format!("{check} failed on GPU {gpu}"),
        error_codes: vec!["79".to_owned()],
        entities: vec![Entity::new("GPU", gpu)],
        generated_at: Some(Timestamp::now()),
        node_name: node.to_owned(),
        ..HealthEvent::default()
    }
}

/// The word that it is well again.
pub(crate) fn healthy(of: &HealthEvent) -> HealthEvent {
    HealthEvent {
        is_healthy: true,
        is_fatal: false,
        message: String::new(),
        generated_at: Some(Timestamp::now()),
        ..of.clone()
    }
}

/// The keys that a node's metadata has, for comparing before and after.
pub(crate) fn metadata(node: &Node) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let meta = &node.metadata;
    (
        meta.labels.clone().unwrap_or_default(),
        meta.annotations.clone().unwrap_or_default(),
    )
}
