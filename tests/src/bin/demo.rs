//! `make demo`: a fault in the real kernel log takes a node out of scheduling; after a reboot
//! without the fault it is back.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use e2e::view::{Tone, View};
use e2e::{Agent, Controller, ControllerOptions, KernelLog, nodes};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use testbed::{NodeSpec, Options, Testbed, wait_for};
use tokio::sync::mpsc;

const NODES: usize = 8;
const PODS: usize = 16;
/// The node whose kernel log is this machine's, and the one that reads a pipe.
const VICTIM: &str = "gpu-00002";
const NEIGHBOUR: &str = "gpu-00005";
/// A PCI domain that no real machine has.
const PCI: &str = "beef:17:00";
const CHECK: &str = health_event::checks::XID;
const NAMESPACE: &str = "training";
/// Far longer than anything here takes; a step that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    let view = View::default();
    let outcome = tokio::select! {
        outcome = run(&view) => outcome,
        () = interrupted() => Err(anyhow::anyhow!("interrupted; everything was stopped")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            view.title(&format!("The demo failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut int), Ok(mut term)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
}

/// What the demo measured.
#[derive(Default)]
struct Times(Vec<[String; 3]>);

impl Times {
    fn add(&mut self, what: &str, took: Duration, how: &str) {
        let shown = if took < Duration::from_secs(2) {
            format!("{:.1} ms", took.as_secs_f64() * 1e3)
        } else {
            format!("{:.1} s", took.as_secs_f64())
        };
        self.0.push([what.to_owned(), shown, how.to_owned()]);
    }
}

async fn run(view: &View) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the demo writes a line to /dev/kmsg, which only root may: run it as root"
    );
    let keep = std::env::var_os("KEEP").is_some_and(|value| !value.is_empty() && value != "0");
    let mut times = Times::default();
    view.title("Warden: a GPU falls off the bus");
    view.note(
        "Real: etcd, kube-apiserver, controller-manager, scheduler, /dev/kmsg, both programs.",
    );
    view.note(
        "Stand-ins: kwok plays kubelets and pods; the XID line is written by this demo, as a",
    );
    view.note(
        "user, which agents believe only because accept_user_records is on here; a reboot is",
    );
    view.note(
        "a new boot id. first_action_delay is 0; in production it is 5 min after switching on.",
    );

    view.title("A cluster");
    let step = view.step("control plane with 8 GPU nodes");
    let mut testbed = Testbed::start(Options {
        nodes: NODES,
        ..Options::default()
    })
    .await?;
    times.add(
        "control plane and nodes ready",
        step.done(&testbed.api_url()),
        "",
    );
    let folder = testbed.folder().join("warden");
    let step = view.step("pods on them");
    testbed.deploy(NAMESPACE, "trainer", PODS, DEADLINE).await?;
    step.done(&format!("{PODS} running"));
    let before = snapshot(&testbed).await?;

    let mut warden = Warden::start(&testbed, &folder, view).await?;
    fault(view, &testbed, &warden, &mut times).await?;
    avoided(view, &testbed).await?;
    reboot(view, &testbed, &mut warden, &mut times).await?;
    verify(view, &testbed, &before).await?;

    view.title("What it took");
    view.table(["step", "time", "measured"], &times.0);
    look_around(view, &mut testbed, &warden, keep).await
}

/// The controller and two agents.
struct Warden {
    controller: Controller,
    victim: Agent,
    _neighbour: Agent,
}

impl Warden {
    async fn start(testbed: &Testbed, folder: &Path, view: &View) -> anyhow::Result<Self> {
        let step = view.step("warden-controller, profile cordon");
        let options = ControllerOptions {
            extra: "[quarantine]\nfirst_action_delay = \"0s\"\n".to_owned(),
            ..ControllerOptions::default()
        };
        let controller = Controller::start(testbed, &folder.join("controller"), &options).await?;
        step.done("");
        let step = view.step("warden-agent on two of the nodes");
        let agent = |node: &str, log| {
            let spec = NodeSpec::new(node);
            let (machine, boot) = (&spec.system_uuid, &spec.boot_id);
            Agent::start(
                &folder.join(node),
                node,
                machine,
                boot,
                log,
                controller.ingest,
            )
        };
        let victim = agent(VICTIM, KernelLog::Kmsg("end".to_owned()))?;
        let neighbour = agent(NEIGHBOUR, KernelLog::Pipe)?;
        let warden = Self {
            controller,
            victim,
            _neighbour: neighbour,
        };
        for node in [VICTIM, NEIGHBOUR] {
            warden
                .wait_settled(node, &NodeSpec::new(node).boot_id)
                .await?;
        }
        step.done(&format!(
            "{VICTIM} reads /dev/kmsg, {NEIGHBOUR} a pipe; both are settled"
        ));
        Ok(warden)
    }

    async fn json(&self, path: &str) -> anyhow::Result<serde_json::Value> {
        e2e::http::get_json(self.controller.api, path, &self.controller.api_token()?).await
    }

    async fn wait_settled(&self, node: &str, boot: &str) -> anyhow::Result<()> {
        let what = format!("the agent of {node} to settle");
        let settled = wait_for(what, DEADLINE, || async {
            let shown = self.json(&format!("/api/v1/nodes/{node}")).await?;
            let settled = shown["agent"]["state"] == "settled" && shown["agent"]["boot_id"] == boot;
            Ok(settled.then_some(()))
        })
        .await;
        settled.map_err(|error| error.context(self.controller.log_tail()))
    }
}

/// What a node looks like to those who must not notice anything.
async fn snapshot(testbed: &Testbed) -> anyhow::Result<Vec<(String, bool, Vec<String>)>> {
    let nodes: Api<Node> = Api::all(testbed.admin());
    let nodes = nodes.list(&ListParams::default()).await?;
    let row = |node: &Node| {
        let name = node.metadata.name.clone().unwrap_or_default();
        (name, nodes::is_cordoned(node), nodes::marks(node))
    };
    Ok(nodes.iter().map(row).collect())
}

/// Tells of each change of the victim the moment the watch shows it.
fn watch(testbed: &Testbed) -> mpsc::UnboundedReceiver<(Instant, Node)> {
    use futures::StreamExt as _;
    let (tell, told) = mpsc::unbounded_channel();
    let config = watcher::Config::default().fields(&format!("metadata.name={VICTIM}"));
    let nodes: Api<Node> = Api::all(testbed.admin());
    tokio::spawn(async move {
        // With back-off: the API server is gone at the end, and a hot loop would outlive it.
        let mut stream = std::pin::pin!(watcher(nodes, config).default_backoff());
        loop {
            let event = tokio::select! {
                () = tell.closed() => return,
                event = stream.next() => event,
            };
            let Some(event) = event else { return };
            if let Ok(Event::Apply(node) | Event::InitApply(node)) = event
                && tell.send((Instant::now(), node)).is_err()
            {
                return;
            }
        }
    });
    told
}

async fn next(
    changes: &mut mpsc::UnboundedReceiver<(Instant, Node)>,
    what: &str,
) -> anyhow::Result<(Instant, Node)> {
    tokio::time::timeout(DEADLINE, changes.recv())
        .await
        .with_context(|| format!("waited {DEADLINE:?} for {what}"))?
        .context("the watch ended")
}

async fn fault(
    view: &View,
    testbed: &Testbed,
    warden: &Warden,
    times: &mut Times,
) -> anyhow::Result<()> {
    view.title(&format!("XID 79 in the kernel log of {VICTIM}"));
    let mut changes = watch(testbed);
    next(&mut changes, "the first look at the node").await?;
    let line =
        format!("NVRM: Xid (PCI:{PCI}): 79, pid=4242, name=train.py, GPU has fallen off the bus.");
    view.note(&format!("/dev/kmsg < {line}"));
    let wrote_at = Timestamp::now();
    let wrote = Instant::now();
    write_kernel_line(&line)?;
    let (mut condition, mut cordon) = (None, None);
    while condition.is_none() || cordon.is_none() {
        let (at, node) = next(&mut changes, "the condition and the cordon").await?;
        if condition.is_none() && nodes::condition(&node, CHECK) == Some("True") {
            condition = Some(at - wrote);
        }
        if cordon.is_none() && nodes::is_cordoned(&node) {
            cordon = Some(at - wrote);
        }
    }
    let (read, durable) = stored(warden, wrote_at).await?;
    let mut steps = [
        (read, "line read and decoded by the agent", "agent's clock"),
        (
            durable,
            "event durable in the controller's store",
            "controller's clock",
        ),
        (
            condition.unwrap_or_default(),
            "node condition SysLogsXIDError is True",
            "watch",
        ),
        (
            cordon.unwrap_or_default(),
            "node cordoned, with the reason on it",
            "watch",
        ),
    ];
    steps.sort_by_key(|(after, ..)| *after);
    for (after, what, how) in steps {
        view.happened(Tone::Bad, after, what);
        times.add(&format!("line written → {what}"), after, how);
    }
    Ok(())
}

/// When the agent had the event and when the store had it, after `wrote`.
async fn stored(warden: &Warden, wrote: Timestamp) -> anyhow::Result<(Duration, Duration)> {
    let events = wait_for("the event in the store", DEADLINE, || async {
        let events = warden
            .json(&format!("/api/v1/events?node={VICTIM}"))
            .await?;
        let found = events.as_array().and_then(|all| {
            all.iter()
                .find(|e| e["check"] == CHECK && e["healthy"] == false)
                .cloned()
        });
        Ok(found)
    })
    .await?;
    let after = |key: &str| -> anyhow::Result<Duration> {
        let text = events[key]
            .as_str()
            .with_context(|| format!("the event has no {key}"))?;
        let at: Timestamp = text
            .parse()
            .with_context(|| format!("reading {key} {text}"))?;
        Ok(Duration::try_from(at.duration_since(wrote)).unwrap_or_default())
    };
    Ok((after("generated_at")?, after("received_at")?))
}

/// Opens the log anew for the line: user writes are limited for each open file.
fn write_kernel_line(line: &str) -> anyhow::Result<()> {
    let mut log = OpenOptions::new()
        .write(true)
        .open("/dev/kmsg")
        .context("opening /dev/kmsg to write")?;
    log.write_all(format!("<6>{line}\n").as_bytes())
        .context("writing a line to /dev/kmsg")
}

/// The sequence number that the next record of the kernel log will have.
fn after_newest_record() -> anyhow::Result<u64> {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open("/dev/kmsg")
        .context("opening /dev/kmsg to read")?;
    let mut next = 0;
    let mut record = vec![0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                let sequence = text
                    .split(',')
                    .nth(1)
                    .and_then(|field| field.parse::<u64>().ok());
                next = sequence.map_or(next, |sequence| sequence + 1);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(next),
            // The oldest records were overwritten while we read: go on with what is left.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error).context("reading /dev/kmsg"),
        }
    }
}

async fn avoided(view: &View, testbed: &Testbed) -> anyhow::Result<()> {
    view.title("New pods avoid it");
    let step = view.step("a second job of 14 pods");
    testbed
        .deploy(NAMESPACE, "late-trainer", 14, DEADLINE)
        .await?;
    let pods: Api<Pod> = Api::namespaced(testbed.admin(), NAMESPACE);
    let pods = pods.list(&ListParams::default()).await?;
    let late = pods.iter().filter(|pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        name.starts_with("late-trainer")
    });
    let places: Vec<&str> = late
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    ensure!(
        !places.contains(&VICTIM),
        "a new pod was scheduled onto {VICTIM}"
    );
    step.done(&format!("{} running, none on {VICTIM}", places.len()));
    Ok(())
}

async fn reboot(
    view: &View,
    testbed: &Testbed,
    warden: &mut Warden,
    times: &mut Times,
) -> anyhow::Result<()> {
    view.title(&format!("A person reboots {VICTIM}"));
    let boot = format!("{}-rebooted", NodeSpec::new(VICTIM).boot_id);
    let step = view.step("agent down, node NotReady, another boot id");
    warden.victim.stop()?;
    testbed.set_not_ready(VICTIM, "Rebooting").await?;
    warden.victim.set_boot_id(&boot)?;
    testbed.reboot(VICTIM, &boot).await?;
    testbed.set_ready(VICTIM).await?;
    step.done("");
    let node = nodes::read(&testbed.admin(), VICTIM).await?;
    ensure!(
        nodes::is_cordoned(&node),
        "the node was released before anyone looked at it again"
    );
    view.note("The node is Ready again and still out: another boot id alone proves nothing.");
    let sequence = after_newest_record()?;
    view.note(&format!(
        "This machine's kernel ring can't be emptied, so the agent goes on at record {sequence}."
    ));
    let mut changes = watch(testbed);
    let started = Instant::now();
    warden
        .victim
        .set_kernel_log(KernelLog::Kmsg(sequence.to_string()));
    warden.victim.spawn()?;
    loop {
        let (at, node) = next(&mut changes, "the release").await?;
        if !nodes::is_cordoned(&node) && nodes::marks(&node).is_empty() {
            let took = at - started;
            view.happened(
                Tone::Good,
                took,
                "settled report without the fault; node released",
            );
            times.add("agent started → node released", took, "watch");
            break;
        }
    }
    nodes::wait(&testbed.admin(), VICTIM, "well", DEADLINE, |node| {
        nodes::condition(node, CHECK) == Some("False")
    })
    .await?;
    Ok(())
}

/// A separate read of the API server decides about success.
async fn verify(
    view: &View,
    testbed: &Testbed,
    before: &[(String, bool, Vec<String>)],
) -> anyhow::Result<()> {
    view.title("A separate look at the API server");
    let step = view.step("all nodes as they were");
    // The node controller takes its own taint off a moment after an uncordon.
    nodes::wait(
        &testbed.admin(),
        VICTIM,
        "without taints",
        DEADLINE,
        |node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_none_or(Vec::is_empty)
        },
    )
    .await?;
    let after = snapshot(testbed).await?;
    ensure!(
        after == before,
        "nodes differ from what they were: before {before:?}, after {after:?}"
    );
    let victim = nodes::read(&testbed.admin(), VICTIM).await?;
    ensure!(!nodes::is_cordoned(&victim), "{VICTIM} is still cordoned");
    step.done(&format!(
        "{VICTIM} is schedulable without a mark, the other {} are untouched",
        NODES - 1
    ));
    Ok(())
}

async fn look_around(
    view: &View,
    testbed: &mut Testbed,
    warden: &Warden,
    keep: bool,
) -> anyhow::Result<()> {
    view.title("Look around");
    let api = warden.controller.api;
    let warden_program = e2e::programs::program("warden")?;
    let commands: [(&str, PathBuf); 1] = [("token", warden.controller.store().join("api-token"))];
    let [(_, token)] = &commands;
    for command in [
        "status",
        &format!("explain {VICTIM}"),
        &format!("timeline {VICTIM}"),
    ] {
        view.note(&format!(
            "{} {command} --server http://{api} --token-file {}",
            warden_program.display(),
            token.display()
        ));
    }
    if !keep {
        view.note("KEEP=1 make demo leaves all of it running until Ctrl-C.");
        return Ok(());
    }
    view.note(&format!(
        "export KUBECONFIG={}",
        testbed.kubeconfig().display()
    ));
    view.note("Running until Ctrl-C.");
    interrupted().await;
    if !warden.controller.store().exists() {
        bail!("the controller's store vanished while the demo was left running");
    }
    Ok(())
}
