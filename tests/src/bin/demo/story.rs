//! What the demo shows, step by step.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::ring::{self, Ring};
use e2e::view::{Tone, View};
use e2e::{Agent, Controller, ControllerOptions, KernelLog, nodes};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use testbed::{Behaviour, NodeSpec, Options, ProviderOptions, SimProvider, Testbed, wait_for};
use tokio::sync::mpsc;

use crate::measured::{Step, Times, between, decoded_at, moment};
use crate::verify::{Look, verify};
use crate::{look, work};

pub(crate) const NODES: usize = 8;
/// The node whose kernel log is this machine's.
pub(crate) const VICTIM: &str = "gpu-00002";
/// The one that reads a pipe.
const NEIGHBOUR: &str = "gpu-00005";
pub(crate) const CHECK: &str = health_event::checks::XID;
/// What RebootNode objects are, as it is shipped.
const REBOOT_NODE: &str =
    include_str!("../../../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");
/// How long a machine is down that reboots.
const DOWN: Duration = Duration::from_secs(2);
/// Far longer than anything here takes; a step that needs it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What is real and what is played.
pub(crate) fn introduce(view: &View) {
    view.title("Warden: a GPU falls off the bus");
    for line in [
        "Real: etcd, kube-apiserver, controller-manager, scheduler, /dev/kmsg, both programs.",
        "Stand-ins: kwok plays kubelets and pods; the XID line is written by this demo, as a",
        "user, which agents believe only because accept_user_records is on here; a simulated",
        "provider takes the reboot signal, and a reboot is a new boot id. first_action_delay is 0;",
        "in production it is 5 min after switching on.",
    ] {
        view.note(line);
    }
}

/// A control plane with nodes and pods on them.
pub(crate) async fn cluster(view: &View) -> anyhow::Result<Testbed> {
    view.title("A cluster");
    let step = view.step(&format!("control plane with {NODES} GPU nodes"));
    let testbed = Testbed::start(Options {
        nodes: NODES,
        ..Options::default()
    })
    .await?;
    step.done(&testbed.api_url());
    Ok(testbed)
}

/// The whole story on that cluster; with `keep` it stays until the caller drops it, and `shown`
/// says that all there was to show has been shown.
pub(crate) async fn tell(
    view: &View,
    testbed: Testbed,
    keep: bool,
    shown: &AtomicBool,
) -> anyhow::Result<()> {
    let mut times = Times::default();
    let folder = testbed.folder().join("warden");
    work::begin(view, &testbed).await?;
    let before = Look::at(&testbed).await?;
    view.fleet(&before.fleet());

    // Taken before the agent begins to read, so that it sees no other test's faults.
    let ring = kernel_log(view).await?;
    let mut warden = Warden::start(&testbed, &folder, view).await?;
    let line = format!(
        "NVRM: Xid (PCI:{}:17:00): 79, pid=4242, name=train.py, GPU has fallen off the bus.",
        ring::domain()
    );
    fault(view, &testbed, &warden, &line, &mut times).await?;
    view.fleet(&Look::at(&testbed).await?.fleet());
    work::avoids(view, &testbed).await?;
    work::leaves(view, &testbed, &warden.controller, &mut times).await?;
    reboot(view, &testbed, &mut warden, &mut times).await?;
    verify(view, &testbed, &before, DEADLINE).await?;

    view.title("The record that stays");
    look::warden(view, &warden.controller, &["timeline", VICTIM]).await?;
    view.title("What it took");
    view.table(["step", "time", "by"], times.rows());
    view.note(&format!(
        "The whole demo took {:.0} s.",
        view.elapsed().as_secs_f64()
    ));
    if !keep {
        view.title("Look around");
        view.note("Everything is stopped now. KEEP=1 make demo leaves it running, with the");
        view.note("commands to look around in it, until Ctrl-C.");
        return Ok(());
    }
    view.title("Look around: paste this into another terminal, as root");
    warden.leave_kernel_log().await?;
    drop(ring);
    for command in look::commands(&testbed, &warden.controller, &warden.victim.socket())? {
        view.plain(&command);
    }
    view.note("");
    view.note("The agents don't read this machine's kernel log any more, so that faults which");
    view.note("other tests write into it are not taken for these nodes'. The other nodes have no");
    view.note("agent, as reports.expect_everywhere = false says. Running until Ctrl-C.");
    shown.store(true, Ordering::SeqCst);
    // The caller watches over the programs, and drops this when it is told to end.
    let mut changes = watch(&testbed);
    loop {
        warden.goes_down(&mut changes).await?;
        warden.comes_up(&mut changes).await?;
        warden.victim.spawn()?;
    }
}

async fn kernel_log(view: &View) -> anyhow::Result<Ring> {
    if let Some(ring) = Ring::try_take()? {
        return Ok(ring);
    }
    // At once: a step is told when it is done, and nobody knows when this one will be.
    view.note("Waiting: another test, benchmark or demo uses this machine's kernel log. It holds");
    view.note(&format!(
        "{} (fuser says who); for at most {} min.",
        Ring::lock_file().display(),
        ring::PATIENCE.as_secs() / 60
    ));
    let step = view.step("the kernel log to ourselves");
    let ring = Ring::take().await?;
    step.done("it is ours now");
    Ok(ring)
}

/// The controller, two agents, and the provider that the controller asks for reboots.
struct Warden {
    controller: Controller,
    victim: Agent,
    _neighbour: Agent,
    provider: SimProvider,
    /// The victim's present boot.
    boot: String,
}

impl Warden {
    async fn start(testbed: &Testbed, folder: &Path, view: &View) -> anyhow::Result<Self> {
        let step = view.step("a simulated provider of reboots, and the RebootNode definition");
        testbed.install_crd(REBOOT_NODE).await?;
        let provider = SimProvider::start(ProviderOptions {
            behaviour: Behaviour {
                down_for: DOWN,
                ..Behaviour::default()
            },
            ..ProviderOptions::new(testbed.admin())
        })
        .await?;
        step.done(&provider.address().to_string());
        let step = view.step("warden-controller, profile remediate");
        let options = ControllerOptions {
            profile: "remediate".to_owned(),
            // Agents run on two of the nodes; of the others nobody is to expect any.
            extra: format!(
                "[quarantine]\nfirst_action_delay = \"0s\"\n\
                 [remediation]\nfirst_action_delay = \"0s\"\n\
                 [reports]\nexpect_everywhere = false\n{}\
                 [janitor]\ncspProviderHost = \"{}\"\ncspProviderInsecure = true\n\
                 cspProviderTokenPath = \"\"\nask_interval = \"1s\"\n",
                work::POLICY,
                provider.address()
            ),
            ..ControllerOptions::default()
        };
        let controller = Controller::start(testbed, &folder.join("controller"), &options).await?;
        step.done("");
        let step = view.step("warden-agent on two of the nodes");
        let agent = |node: &str, log| {
            let spec = NodeSpec::new(node);
            let (machine, boot) = (&spec.system_uuid, &spec.boot_id);
            let folder = folder.join(node);
            Agent::start(&folder, node, machine, boot, log, controller.ingest)
        };
        let victim = agent(VICTIM, KernelLog::Kmsg("end".to_owned()))?;
        let neighbour = agent(NEIGHBOUR, KernelLog::Pipe)?;
        let warden = Self {
            controller,
            victim,
            _neighbour: neighbour,
            provider,
            boot: NodeSpec::new(VICTIM).boot_id,
        };
        for node in [VICTIM, NEIGHBOUR] {
            let boot = NodeSpec::new(node).boot_id;
            warden.wait_settled(node, &boot).await?;
        }
        step.done(&format!(
            "{VICTIM} reads /dev/kmsg, {NEIGHBOUR} a pipe; both are settled"
        ));
        Ok(warden)
    }

    /// Waits until the victim is down, and its agent with it.
    async fn goes_down(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        loop {
            let (_, node) = changes.recv().await.context("the watch ended")?;
            // Its taint may come when the node is back.
            let ready = testbed::ready_condition(&node);
            if ready.is_some_and(|(status, _)| status != "True") {
                return self.victim.stop();
            }
        }
    }

    /// Waits until the victim is Ready in another boot; its agent is not started yet.
    async fn comes_up(&mut self, changes: &mut Changes) -> anyhow::Result<Node> {
        loop {
            let (_, node) = next(changes, "another boot id and Ready").await?;
            let boot = testbed::boot_id(&node).unwrap_or_default();
            if boot != self.boot && testbed::is_ready(&node) {
                boot.clone_into(&mut self.boot);
                self.victim.set_boot_id(boot)?;
                return Ok(node);
            }
        }
    }

    /// Lets the agent of the victim go on without a kernel log.
    async fn leave_kernel_log(&mut self) -> anyhow::Result<()> {
        self.victim.stop()?;
        self.victim.set_kernel_log(KernelLog::Off);
        self.victim.spawn()?;
        let boot = self.boot.clone();
        self.wait_settled(VICTIM, &boot).await
    }

    async fn wait_settled(&self, node: &str, boot: &str) -> anyhow::Result<()> {
        let what = format!("the agent of {node} to settle");
        let path = format!("/api/v1/nodes/{node}");
        let settled = wait_for(what, DEADLINE, || async {
            let shown = self.controller.json(&path).await?;
            let settled = shown["agent"]["state"] == "settled" && shown["agent"]["boot_id"] == boot;
            Ok(settled.then_some(()))
        })
        .await;
        settled.map_err(|error| error.context(self.controller.log_tail()))
    }

    /// The attempt to repair the victim, once its object is there.
    async fn ordered(&self) -> anyhow::Result<serde_json::Value> {
        wait_for("the order of a reboot", DEADLINE, || async {
            let path = format!("/api/v1/nodes/{VICTIM}");
            let shown = self.controller.json(&path).await?;
            let repair = &shown["incidents"][0]["repair"];
            ensure!(repair["attempt"].is_object(), "{repair:#}");
            Ok(Some(repair["attempt"].clone()))
        })
        .await
        .with_context(|| self.controller.log_tail())
    }

    /// The stored event of the line, and the first step of the incident that it opened.
    async fn stored(&self) -> anyhow::Result<(serde_json::Value, serde_json::Value)> {
        wait_for("the event in the store", DEADLINE, || async {
            let path = format!("/api/v1/events?node={VICTIM}");
            let events = self.controller.json(&path).await?;
            let ours = |e: &&serde_json::Value| e["check"] == CHECK && e["healthy"] == false;
            let event = events.as_array().and_then(|all| all.iter().find(ours));
            let path = format!("/api/v1/nodes/{VICTIM}/timeline");
            let steps = self.controller.json(&path).await?;
            let step = steps.as_array().and_then(|all| all.first());
            Ok(event.cloned().zip(step.cloned()))
        })
        .await
    }
}

type Changes = mpsc::UnboundedReceiver<(Instant, Node)>;

/// Tells of each change of the victim the moment the watch shows it.
fn watch(testbed: &Testbed) -> Changes {
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

async fn next(changes: &mut Changes, what: &str) -> anyhow::Result<(Instant, Node)> {
    tokio::time::timeout(DEADLINE, changes.recv())
        .await
        .with_context(|| format!("waited {DEADLINE:?} for {what}"))?
        .context("the watch ended")
}

async fn fault(
    view: &View,
    testbed: &Testbed,
    warden: &Warden,
    line: &str,
    times: &mut Times,
) -> anyhow::Result<()> {
    view.title(&format!("XID 79 in the kernel log of {VICTIM}"));
    let mut changes = watch(testbed);
    next(&mut changes, "the first look at the node").await?;
    view.note(&format!("/dev/kmsg < {line}"));
    let (wrote_at, wrote) = (Timestamp::now(), Instant::now());
    ring::write(line)?;
    let (mut condition, mut cordon) = (None, None);
    let (condition, cordon) = loop {
        if let (Some(condition), Some(cordon)) = (condition, cordon) {
            break (condition, cordon);
        }
        let (at, node) = next(&mut changes, "the condition and the cordon").await?;
        if condition.is_none() && nodes::condition(&node, CHECK) == Some("True") {
            condition = Some(at - wrote);
        }
        if cordon.is_none() && nodes::is_cordoned(&node) {
            cordon = Some(at - wrote);
        }
    };
    let (event, step) = warden.stored().await?;
    let what = "the agent's log to tell of the line";
    let pci = format!("{}:17", ring::domain());
    let decoded = wait_for(what, DEADLINE, || async {
        Ok(decoded_at(&warden.victim.log_tail(), &pci))
    })
    .await?;
    let new = |after, what, by| Step { after, what, by };
    let mut steps = [
        new(
            between(wrote_at, decoded),
            "agent has read and decoded it",
            "agent's clock",
        ),
        new(
            between(wrote_at, moment(&event, "received_at")?),
            "event arrived at the controller",
            "controller's clock",
        ),
        new(
            between(wrote_at, moment(&step, "at")?),
            "event on disk, and the decision stored: take the node out",
            "controller's clock",
        ),
        new(condition, "node condition SysLogsXIDError is True", "watch"),
        new(cordon, "node cordoned, with the reason on it", "watch"),
    ];
    steps.sort_by_key(|step| step.after);
    for Step { after, what, by } in steps {
        view.happened(Tone::Bad, after, what);
        times.add(&format!("line written → {what}"), after, by);
    }
    Ok(())
}

/// Warden has the machine rebooted; it plays along, and proves itself.
async fn reboot(
    view: &View,
    testbed: &Testbed,
    warden: &mut Warden,
    times: &mut Times,
) -> anyhow::Result<()> {
    view.title(&format!("Warden has {VICTIM} rebooted"));
    let mut changes = watch(testbed);
    view.note(
        "A controller that has just begun to lead waits for one length of its lease before it",
    );
    view.note("does what can't be undone.");
    let attempt = warden.ordered().await?;
    let ordered = moment(&attempt, "requested_at")?;
    let object = attempt["object"].as_str().unwrap_or_default();
    let action = attempt["action"].as_str().unwrap_or_default();
    view.note(&format!("For {action} it orders RebootNode {object}."));
    tokio::time::timeout(DEADLINE, warden.goes_down(&mut changes))
        .await
        .context("waited for the reboot to begin")??;
    let signals = warden.provider.signals(VICTIM);
    ensure!(signals == 1, "the provider got {signals} signals");
    let after = between(ordered, Timestamp::now());
    view.happened(
        Tone::Bad,
        after,
        "the node is down: the provider reboots it",
    );
    let node = warden.comes_up(&mut changes).await?;
    let after = between(ordered, Timestamp::now());
    view.happened(Tone::Good, after, "Ready again, in another boot");
    let what = "RebootNode ordered → node Ready in another boot";
    times.add(what, after, "watch");
    ensure!(
        nodes::is_cordoned(&node),
        "the node was released before anyone looked at it again"
    );
    view.note("It is still out: another boot id alone proves nothing. Its agent has to look.");
    let sequence = ring::next_sequence()?;
    view.note(&format!(
        "This machine's kernel ring can't be emptied, so the agent goes on at record {sequence}."
    ));
    let started = Instant::now();
    warden
        .victim
        .set_kernel_log(KernelLog::Kmsg(sequence.to_string()));
    warden.victim.spawn()?;
    let took = loop {
        let (at, node) = next(&mut changes, "the release").await?;
        if !nodes::is_cordoned(&node) && nodes::marks(&node).is_empty() {
            break at - started;
        }
    };
    let what = "settled report without the fault; node released";
    view.happened(Tone::Good, took, what);
    times.add("agent started → node released", took, "watch");
    nodes::wait(&testbed.admin(), VICTIM, "well", DEADLINE, |node| {
        nodes::condition(node, CHECK) == Some("False")
    })
    .await?;
    Ok(())
}
