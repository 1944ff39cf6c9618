//! Wiring: from the command line to a running process, and to its end.
//!
//! Order: telemetry, health pages, lease, store, then everything else; a second instance waits at
//! the lease and answers `/healthz` only. Every long-lived task runs under [`Tasks`]: one that ends
//! ends the process with its error. SIGTERM and SIGINT stop in order: no new calls, running ones
//! finish, the lease is given back, the store is closed.

mod series;
mod serve;
mod store;
mod tasks;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use event_store::{EventStore, OpenError, Options};
use health_event::NodeName;
use health_event::incident::Incident;
use telemetry::{Admin, ControllerMetrics, Readiness, Subsystem};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::args::Args;
use crate::checked::{Checked, checked};
use crate::config::{Config, ConfigError, Problem, TrustMode};
use crate::context::Context;
use crate::file::ConfigFile;
use crate::gone::Gone;
use crate::ingest::ClockSkews;
use crate::kubernetes::rights::{self, Rights};
use crate::kubernetes::{self, Kube};
use crate::lease::{Heritage, Leadership, Lease, Settings};
use crate::nodes::{NodeCache, NodeCost, Wanted, watch};
use crate::orders::Orders;
use crate::pods::Pods;
use crate::reboots::{self, Reboots};
use crate::refusals::Refusals;
use crate::reports::{Reports, Silence, close_retired};
use crate::stages::Stages;
use crate::stop::{self, Stop};
use crate::workers::WakeAll;
use crate::{connector, drain, janitor, quarantine, remediation, requests};
use tasks::Tasks;

/// Where a pod's service account is mounted.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Namespace outside a pod, unless configured.
const NAMESPACE: &str = "warden";
/// How often flapping faults are looked at.
const FLAPPING: Duration = Duration::from_secs(5);
/// How often retention runs.
const PRUNE: Duration = Duration::from_mins(1);

/// What can be said before anything starts: the settings in effect.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    kubeconfig: Option<PathBuf>,
    insecure_local: bool,
    warnings: Vec<Problem>,
    file: ConfigFile,
}

/// Reads and checks everything that the command line names.
///
/// # Errors
/// Everything that is wrong with the configuration, rule sets included.
pub fn prepare(args: Args) -> anyhow::Result<Prepared> {
    #[cfg(debug_assertions)]
    let Args {
        config: path,
        kubeconfig,
        node_name,
        insecure_local,
        check_config: _,
        crash_at,
    } = args;
    #[cfg(not(debug_assertions))]
    let Args {
        config: path,
        kubeconfig,
        node_name,
        insecure_local,
        check_config: _,
    } = args;
    #[cfg(debug_assertions)]
    if let Some(point) = crash_at {
        crate::crash::arm(point);
    }
    let text = match &path {
        None => String::new(),
        Some(path) => crate::config::read(path).with_context(|| {
            format!(
                "reading the configuration {}; check --config",
                path.display()
            )
        })?,
    };
    let Checked {
        mut config,
        mut problems,
        warnings,
        rules: _,
    } = checked(&text)?;
    if insecure_local {
        problems.extend(make_local(&mut config));
    }
    let own = &mut config.kubernetes.node_name;
    *own = own.take().or(node_name);
    if !problems.is_empty() {
        return Err(ConfigError::Problems(problems).into());
    }
    Ok(Prepared {
        config,
        kubeconfig,
        insecure_local,
        warnings,
        file: ConfigFile::new(path, text),
    })
}

/// What is wrong with a configuration's text, which [`prepare`] would refuse, and what is odd.
pub fn check(text: &str) -> (Vec<Problem>, Vec<Problem>) {
    match checked(text) {
        Ok(read) => (read.problems, read.warnings),
        Err(ConfigError::Problems(problems)) => (problems, Vec::new()),
        Err(ConfigError::Syntax(why)) => (of_file(why, "a TOML document"), Vec::new()),
        Err(error @ ConfigError::TooLarge) => (
            of_file(text.len().to_string() + " bytes", &error.to_string()),
            Vec::new(),
        ),
    }
}

/// What is wrong with a file as a whole.
fn of_file(value: String, allowed: &str) -> Vec<Problem> {
    let (key, allowed) = (String::new(), allowed.to_owned());
    vec![Problem {
        key,
        value,
        allowed,
    }]
}

/// What a node costs under a configuration that nothing is wrong with; none for any other.
pub fn node_cost(text: &str) -> Option<NodeCost> {
    let config = Config::parse(text).ok()?;
    wanted(&config).map(|wanted| NodeCost::of(&wanted))
}

/// Plaintext, without tokens, on loopback: whatever else is configured to listen is refused.
fn make_local(config: &mut Config) -> Vec<Problem> {
    config.ingest.mode = TrustMode::Off;
    let mut problems = Vec::new();
    let listens = [
        ("ingest.listen", &mut config.ingest.listen),
        (
            "ingest.plaintext_listen",
            &mut config.ingest.plaintext_listen,
        ),
        ("api.listen", &mut config.api.listen),
    ];
    for (key, listen) in listens {
        let Some(address) = listen else { continue };
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        if !address.ip().is_loopback() {
            problems.push(Problem {
                key: key.to_owned(),
                value: format!("\"{address}\""),
                allowed: "a loopback address with --insecure-local".to_owned(),
            });
        }
    }
    problems
}

/// Runs until a signal, or until a part ends.
///
/// # Errors
/// What could not start, or ended.
pub async fn run(prepared: Prepared) -> anyhow::Result<()> {
    let Prepared {
        config,
        kubeconfig,
        insecure_local,
        warnings,
        file,
    } = prepared;
    telemetry::logging::init(config.log.format, &config.log.filter)?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        "warden-controller starts"
    );
    for line in config.effective().lines() {
        info!(target: "controller::config", "{line}");
    }
    for Problem { key, allowed, .. } in warnings {
        warn!(target: "controller::config", "{key}: {allowed}");
    }
    if insecure_local {
        warn!("--insecure-local: plaintext, no tokens, loopback only; never use it in production");
    }
    let (stopper, stop) = stop::channel();
    let mut tasks = Tasks::default();
    let outcome = {
        let running = start_and_watch(config, file, kubeconfig, insecure_local, stop, &mut tasks);
        tokio::select! {
            outcome = running => outcome,
            signal = stop_signal() => signal.map(|name| info!(signal = name, "stopping")),
        }
    };
    stopper.stop();
    tasks.finish().await;
    outcome
}

/// The name of the signal that came.
async fn stop_signal() -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// Ends only with the first task that ends, or with what could not start.
async fn start_and_watch(
    config: Config,
    file: ConfigFile,
    kubeconfig: Option<PathBuf>,
    insecure_local: bool,
    stop: Stop,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let config = Arc::new(config);
    let metrics = Arc::new(ControllerMetrics::new());
    let readiness = Readiness::default();
    let admin = Admin {
        readiness: readiness.clone(),
        metrics: Arc::clone(&metrics),
    };
    let pages = serve::pages(&config.api, admin, &stop, tasks).await?;
    let lease_ready = readiness.subsystem("lease");
    let store_ready = readiness.subsystem("store");
    let nodes_ready = readiness.subsystem("nodes");
    // Named from the beginning: a process is not ready before its ports answer.
    let api_ready = readiness.subsystem("api");
    if config.ingest.enabled {
        readiness.subsystem("ingest");
    }

    let settings = kubernetes::config(kubeconfig.as_deref()).await?;
    let namespace = namespace(&config, &settings.default_namespace).await;
    let client = kubernetes::client(&settings)?;
    let rights = Rights::shown(readiness.subsystem(rights::PART));
    let kube = Kube::new(client.clone()).with_rights(rights);
    let lease_kube = Kube::new(kubernetes::client(&settings)?);
    lease_ready.not_ready("waiting for the lease");
    let (leadership, store) =
        lead(&config, lease_kube, &namespace, &lease_ready, &stop, tasks).await?;
    lease_ready.ready();
    metrics.leader.set(1);

    let fencing = take_over(&store, leadership.fencing()).await?;
    let retired = &config.ingest.retired_checks;
    close_retired(&store, retired, jiff::Timestamp::now())
        .await
        .context("closing the faults of ingest.retired_checks")?;
    store::watch(&store, store_ready, &metrics, &stop, tasks);
    let wakes = WakeAll::default();
    let on_commit = wakes.clone();
    store.on_commit(Box::new(move |commit| {
        for node in &commit.nodes {
            on_commit.wake(node);
        }
    }));
    let wanted = wanted(&config).context("the rule sets passed the check before")?;
    let nodes = NodeCache::new(quarantine::pools(&config.quarantine), wanted);
    let reports = Reports::new(
        store.clone(),
        fencing,
        wakes.clone(),
        config.reports.interval,
    );
    let context = Context {
        config: Arc::clone(&config),
        file,
        store: store.clone(),
        kube,
        nodes: nodes.clone(),
        pods: Pods::default(),
        reboots: Reboots::default(),
        orders: Orders::default(),
        stages: Stages::default(),
        reports,
        refusals: Refusals::default(),
        wakes,
        metrics,
        readiness,
        stop: stop.clone(),
        fencing,
        namespace,
    };
    let requests = start_modules(&context, leadership, tasks);
    let skews = Arc::new(ClockSkews::load(&store)?);
    start_nodes(&context, &skews, nodes_ready, tasks)?;
    start_upkeep(&context, tasks);
    serve::api(&context, &client, requests, insecure_local, &pages)?;
    api_ready.ready();
    serve::ingest(&context, &client, &skews, insecure_local, tasks).await?;
    info!("warden-controller is up");
    tasks.first_end().await
}

async fn namespace(config: &Config, of_client: &str) -> String {
    if let Some(configured) = &config.kubernetes.namespace {
        return configured.clone();
    }
    if tokio::fs::try_exists(POD_NAMESPACE)
        .await
        .unwrap_or_default()
    {
        of_client.to_owned()
    } else {
        NAMESPACE.to_owned()
    }
}

async fn lead(
    config: &Config,
    kube: Kube,
    namespace: &str,
    shown: &Subsystem,
    stop: &Stop,
    tasks: &mut Tasks,
) -> anyhow::Result<(Leadership, EventStore)> {
    if !config.lease.enabled {
        warn!("lease.enabled is false: nothing but the store's lock guards against a second one");
        return Ok((Leadership::unguarded(0), open_store(config)?));
    }
    let host = tokio::fs::read_to_string("/etc/hostname")
        .await
        .unwrap_or_default();
    let identity = format!("{}_{}", host.trim(), ulid::Ulid::new());
    let mut settings = Settings {
        namespace: namespace.to_owned(),
        name: config.lease.name.clone(),
        identity: identity.clone(),
        duration: config.lease.duration,
        dead: None,
        alive: None,
        shown: Some(shown.clone()),
    };
    let heritage = Heritage::new(&config.store.path, config.store.allow_network_fs);
    let mut store = None;
    if let Some(holder) = Lease::held_by(&kube, &settings).await
        && heritage.is_of(&holder)
    {
        match open_store(config) {
            Ok(opened) => {
                warn!(
                    code = "lease_inherited",
                    holder,
                    "the controller that held the lease was killed: its store is ours now, so its \
                     lease is taken over at once"
                );
                (store, settings.dead) = (Some(opened), Some(holder));
            }
            // It lives, or the store can't be used, which is told once the lease is ours.
            Err(error) => {
                let locked = error.downcast_ref::<OpenError>();
                if locked.is_some_and(|error| matches!(error, OpenError::Locked { .. })) {
                    settings.alive = Some((holder, config.store.path.clone()));
                }
                info!(code = "lease_not_inherited", why = %error, "waiting for the lease");
            }
        }
    }
    let lease = Lease::acquire(kube, settings, stop).await?;
    let leadership = lease.leadership();
    let stop = stop.clone();
    tasks.spawn("lease", async move { Ok(lease.run(stop).await?) });
    let store = match store {
        Some(store) => store,
        None => open_store(config)?,
    };
    heritage.note(&identity);
    Ok((leadership, store))
}

fn open_store(config: &Config) -> anyhow::Result<EventStore> {
    let wanted = &config.store;
    let options = Options {
        retention_age: wanted.max_age,
        retention_bytes: wanted.max_bytes,
        reserve: wanted.reserve,
        allow_network_fs: wanted.allow_network_fs,
        fault_memory: wanted.fault_memory,
        repeat_window: config.dedup.window,
        repeat_checks: config.dedup.checks.clone(),
        crash_points: Some(Arc::new(crate::crash::point)),
        ..Options::default()
    };
    let store = EventStore::open(&wanted.path, options)?;
    if store.is_new() {
        warn!(
            code = "store_new",
            id = store.store_id(),
            path = %wanted.path.display(),
            "a new store was made: if there was one before, it is lost; marks on nodes and agents' \
             reports rebuild it, but no history (in an emptyDir this happens with each new pod)"
        );
    } else {
        info!(
            code = "store_opened",
            id = store.store_id(),
            path = %wanted.path.display(),
            "store opened"
        );
    }
    Ok(store)
}

/// The number of this leadership: higher than any before, also if the Lease was deleted and counts
/// anew. A Lease that counts more than the store knows of was led by others with another store meanwhile (a
/// volume of before, a copy that was restored): of what they did this store knows as little as a new one.
async fn take_over(store: &EventStore, lease_number: u64) -> anyhow::Result<u64> {
    let last = store.fencing()?;
    if !store.is_new() && lease_number > last + 1 {
        warn!(
            code = "store_is_older",
            lease = lease_number,
            store = last,
            "others led with another store since this one was last used: what they did is not known here. Orders \
             that hold their node's lock are watched and not sent, and nodes that a person gave back wait for \
             their agents; use one volume for all of the controller's life"
        );
        janitor::knows_no_signal(store, last).await?;
        quarantine::knows_no_hold(store, last).await?;
    }
    let number = lease_number.max(last + 1);
    store.set_fencing(number).await?;
    Ok(number)
}

/// Starts what is on; answers where persons' requests go.
fn start_modules(
    context: &Context,
    leadership: Leadership,
    tasks: &mut Tasks,
) -> requests::Requests {
    let (requests, asked) = requests::channel();
    if follows_reboots(context) {
        // Before anything decides: until all orders of reboots were read, nobody knows which there are.
        context.reboots.will_be_followed();
    }
    if context.config.quarantine.enabled {
        let (context, leadership) = (context.clone(), leadership.clone());
        let quarantine = quarantine::run(context, leadership, asked);
        tasks.spawn("quarantine", async move { Ok(quarantine.await?) });
    } else {
        let (context, leadership) = (context.clone(), leadership.clone());
        tasks.spawn("quarantine, off", async move {
            Ok(quarantine::settle(context, leadership).await?)
        });
    }
    start_loop(context, &leadership, tasks);
    if context.config.connector.enabled {
        let context = context.clone();
        tasks.spawn("connector", async move {
            Ok(connector::run(context, leadership).await?)
        });
    }
    requests
}

/// Whether orders of reboots matter to this process: a module makes or carries out some, or did.
fn follows_reboots(context: &Context) -> bool {
    let under_way = |incident: &Incident| {
        let repair = incident.repair.as_ref();
        repair.is_some_and(|repair| repair.status.is_under_way())
    };
    let open = context.store.open_incidents();
    context.config.remediation.enabled
        || janitor::is_needed(context)
        || open.is_ok_and(|open| open.iter().any(under_way))
}

/// What follows the quarantine: drain, remediation, janitor.
fn start_loop(context: &Context, leadership: &Leadership, tasks: &mut Tasks) {
    // Switched off they follow what runs to its end.
    let (of_drain, leads) = (context.clone(), leadership.clone());
    tasks.spawn(
        "drain",
        async move { Ok(drain::run(of_drain, leads).await?) },
    );
    let (of_repair, leads) = (context.clone(), leadership.clone());
    tasks.spawn("remediation", async move {
        Ok(remediation::run(of_repair, leads).await?)
    });
    if janitor::is_needed(context) {
        let (of_janitor, leads) = (context.clone(), leadership.clone());
        tasks.spawn("janitor", async move {
            Ok(janitor::run(of_janitor, leads).await?)
        });
    }
    if context.reboots.is_followed() {
        let context = context.clone();
        let stop = context.stop.clone();
        tasks.spawn_endless("reboot watch", &stop, async move {
            match reboots::run(&context).await {}
        });
    }
}

/// What the node cache keeps of each node; none if the rule sets are wrong.
fn wanted(config: &Config) -> Option<Wanted> {
    let of_senders = config.ingest.cross_node_identities.iter();
    let of_senders = of_senders.flat_map(|identity| &identity.node_selector);
    let quarantine = &config.quarantine;
    let mut wanted = if quarantine.enabled {
        quarantine::wanted(quarantine, &quarantine::rule_sets(quarantine).ok()?)
    } else {
        Wanted::ours(&quarantine.label_prefix)
    };
    let labels = of_senders.map(|(label, _)| label.clone());
    wanted.labels.extend(labels);
    wanted.labels.extend(config.janitor.label_keys());
    let (labels, annotations) = config.ingest.metadata.wanted();
    wanted.labels.extend(labels.iter().cloned());
    wanted.annotations.extend(annotations.iter().cloned());
    Some(wanted)
}

/// The watch over nodes, the one over their agents' silence, and what ends with a node.
fn start_nodes(
    context: &Context,
    skews: &Arc<ClockSkews>,
    ready: telemetry::Subsystem,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let (kube, nodes, wakes) = (
        context.kube.clone(),
        context.nodes.clone(),
        context.wakes.clone(),
    );
    let gone = Gone::load(context.clone(), Arc::clone(skews))?;
    let of_gone = gone.clone();
    tasks.spawn_endless("node watch", &context.stop, async move {
        let changed = |node: &NodeName| {
            wakes.wake(node);
            of_gone.wake(node);
        };
        watch::run(&kube, &nodes, changed).await;
        Ok(())
    });
    tasks.spawn_endless("gone nodes", &context.stop, async move {
        match gone.run().await? {}
    });
    let synced = context.nodes.clone();
    tasks.spawn_endless("node cache", &context.stop, async move {
        synced.synced().await;
        ready.ready();
        std::future::pending().await
    });
    let silence = Silence::load(
        context.reports.clone(),
        context.nodes.clone(),
        context.config.reports.clone(),
        Arc::clone(&context.metrics),
    )?;
    tasks.spawn_endless("silent agents", &context.stop, async move {
        match silence.run().await? {}
    });
    Ok(())
}

/// Flapping faults, retention, and numbers of nodes that are gone.
fn start_upkeep(context: &Context, tasks: &mut Tasks) {
    let of_series = context.clone();
    tasks.spawn_endless(
        "numbers of nodes that are gone",
        &context.stop,
        async move { match series::forget_gone(of_series).await? {} },
    );
    let store = context.store.clone();
    tasks.spawn_endless("flapping", &context.stop, async move {
        loop {
            tokio::time::sleep(FLAPPING).await;
            if let Err(error) = store.release_flapping(jiff::Timestamp::now()).await {
                warn!(code = error.code(), %error, "flapping faults were not looked at");
            }
        }
    });
    let store = context.store.clone();
    tasks.spawn_endless("retention", &context.stop, async move {
        loop {
            tokio::time::sleep(PRUNE).await;
            let mut shed = 0;
            loop {
                match store.prune(jiff::Timestamp::now()).await {
                    Ok(pruned) => {
                        shed += pruned.shed;
                        if !pruned.more {
                            break;
                        }
                    }
                    Err(error) => {
                        warn!(code = error.code(), %error, "retention did not run");
                        break;
                    }
                }
            }
            if shed > 0 {
                warn!(
                    events = shed,
                    "oldest events of senders that had more than a twentieth of the store went; \
                     `warden status` names the senders"
                );
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insecure_local_listens_on_loopback_only() {
        let mut config = Config::default();
        assert_eq!(make_local(&mut config), []);
        assert_eq!(config.ingest.listen.unwrap().to_string(), "127.0.0.1:9440");
        assert_eq!(config.ingest.mode, TrustMode::Off);
        let mut config = Config::parse("[api]\nlisten = '10.0.0.1:80'").unwrap();
        let error = make_local(&mut config)[0].to_string();
        assert!(error.contains("api.listen = \"10.0.0.1:80\""), "{error}");
    }
}
