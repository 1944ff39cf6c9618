//! `make demo` as a person meets it: side by side with others, kept, interrupted, and with a
//! program that dies. The demo runs as it is shipped; all need root, as it does.

use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use e2e::nodes;
use e2e::ring::Ring;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use testbed::wait_for;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// A demo takes 25 s, and waits for another that uses the kernel's log.
const PATIENCE: Duration = Duration::from_secs(120);
/// How soon a death must be told: it is looked for five times a second.
const NOTICED: Duration = Duration::from_secs(10);

/// A running demo and what it says.
struct Demo {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    lines: Vec<String>,
}

impl Demo {
    fn start(keep: bool) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_demo"))
            .env("KEEP", if keep { "1" } else { "" })
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            said,
            lines: Vec::new(),
        }
    }

    /// Reads on until it says this.
    async fn until(&mut self, text: &str) -> String {
        let read = async {
            while let Some(line) = self.said.next_line().await.unwrap() {
                self.lines.push(line.clone());
                if line.contains(text) {
                    return Some(line);
                }
            }
            None
        };
        match tokio::time::timeout(PATIENCE, read).await {
            Ok(Some(line)) => line,
            other => panic!("{other:?} instead of {text:?}; it said\n{}", self.text()),
        }
    }

    fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Its programs, by name.
    fn programs(&self) -> Vec<(String, u32)> {
        children_of(self.id())
    }

    /// What Ctrl-C does.
    fn interrupt(&self) {
        signal(self.id(), Signal::INT);
    }

    /// Waits for its end; then none of its programs may be left.
    async fn end(mut self, programs: &[(String, u32)]) -> (ExitStatus, String) {
        let status = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = self.said.next_line().await.unwrap() {
                self.lines.push(line);
            }
            self.child.wait().await.unwrap()
        });
        let status = status.await.unwrap();
        for (name, id) in programs {
            // One that its new parent has not reaped yet has no program any more.
            let left = std::fs::read_link(format!("/proc/{id}/exe")).is_ok();
            assert!(!left, "{name} (process {id}) is left");
        }
        (status, self.text())
    }

    fn text(&self) -> String {
        self.lines.join("\n")
    }
}

fn signal(id: u32, signal: Signal) {
    kill_process(Pid::from_raw(id.cast_signed()).unwrap(), signal).unwrap();
}

/// Name and number of each child of this process.
fn children_of(parent: u32) -> Vec<(String, u32)> {
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    let child = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let is_ours = field("PPid:")?.trim() == parent.to_string();
        let command = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let command = command.split(|byte| *byte == 0).next()?.to_vec();
        let path = PathBuf::from(String::from_utf8(command).ok()?);
        let name = path.file_name()?.to_str()?.to_owned();
        is_ours.then_some((name, id))
    };
    ids.filter_map(child).collect()
}

fn process(programs: &[(String, u32)], name: &str) -> u32 {
    let found = programs.iter().find(|(program, _)| program == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {programs:?}"))
        .1
}

/// Runs what the kept demo printed to be pasted, and `command` after it.
async fn pasted(exports: &[String], command: &str) -> Output {
    let script = format!("{}\n{command}", exports.join("\n"));
    let run = Command::new("bash").args(["-c", &script]).output();
    tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_demos_side_by_side_both_succeed_and_a_kept_one_can_be_looked_at() {
    let mut kept = Demo::start(true);
    let plain = Demo::start(false);
    let (status, text) = plain.end(&[]).await;
    assert!(status.success(), "{text}");
    // Nothing that can't work any more is offered.
    assert!(
        !text.contains("export ") && text.contains("KEEP=1 make demo"),
        "{text}"
    );

    kept.until("Running until Ctrl-C").await;
    let exports: Vec<String> = kept
        .lines
        .iter()
        .filter(|line| line.starts_with("export "))
        .cloned()
        .collect();
    assert_eq!(exports.len(), 4, "{exports:?}");
    let commands: Vec<String> = kept
        .lines
        .iter()
        .filter(|line| line.starts_with("warden "))
        .cloned()
        .collect();
    assert_eq!(commands.len(), 6, "{commands:?}");
    for command in commands {
        // 1 says that the node is out, which it is or not yet.
        let may_be_out = command.starts_with("warden explain");
        let output = pasted(&exports, &command).await;
        let code = output.status.code();
        assert!(
            code == Some(0) || may_be_out && code == Some(1),
            "{command}: {output:?}"
        );
    }
    // Nobody tells of nodes on which no agent is meant to run.
    let status = pasted(&exports, "warden status --format json").await.stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    for node in status["nodes"].as_array().unwrap() {
        let is_played = ["gpu-00002", "gpu-00005"].contains(&node["name"].as_str().unwrap());
        let quiet = node["open_faults"] == 0 && node["agent"] == "none";
        assert!(is_played || quiet, "{node}");
    }
    // The kubeconfig is whole: any client can read it.
    let kubeconfig = pasted(&exports, "cat $KUBECONFIG").await.stdout;
    let kubeconfig: serde_json::Value = serde_json::from_slice(&kubeconfig).unwrap();
    assert_eq!(kubeconfig["kind"], "Config");

    let programs = kept.programs();
    process(&programs, "warden-controller");
    kept.interrupt();
    let (status, text) = kept.end(&programs).await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("everything was stopped"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_waits_for_the_kernel_log_says_so_at_once() {
    let ring = Ring::take().await.unwrap();
    let mut demo = Demo::start(false);
    demo.until("a training run").await;
    let told = tokio::time::timeout(Duration::from_secs(1), demo.until("Waiting: another test"));
    told.await.expect("within a second");
    let held = demo.until("fuser says who").await;
    assert!(held.contains(Ring::lock_file().to_str().unwrap()), "{held}");
    drop(ring);
    demo.until("the kernel log to ourselves").await;
    let (status, text) = demo.end(&[]).await;
    assert!(status.success(), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_interrupted_in_the_middle_fails_and_leaves_no_process() {
    let mut demo = Demo::start(false);
    demo.until("control plane with 8 GPU nodes").await;
    let programs = demo.programs();
    process(&programs, "etcd");
    demo.interrupt();
    let (status, text) = demo.end(&programs).await;
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("everything was stopped"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dies_under_a_kept_demo_ends_it_by_name() {
    for name in ["warden-controller", "warden-agent", "kube-apiserver"] {
        let mut demo = Demo::start(true);
        demo.until("Running until Ctrl-C").await;
        let programs = demo.programs();
        signal(process(&programs, name), Signal::KILL);
        let ended = tokio::time::timeout(NOTICED, demo.end(&programs)).await;
        let (status, text) = ended.expect("it notices");
        assert_eq!(status.code(), Some(1), "{text}");
        let told = text.lines().find(|line| line.contains("The demo failed"));
        let told = told.unwrap_or_else(|| panic!("{text}"));
        assert!(told.contains(name) && told.contains("signal: 9"), "{told}");
        assert!(told.contains("the end of "), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dies_in_the_middle_of_a_demo_is_named_too() {
    let mut demo = Demo::start(false);
    demo.until("a training run").await;
    let programs = demo.programs();
    let find = || async {
        let programs = children_of(demo.child.id().unwrap_or_default());
        Ok(programs
            .into_iter()
            .find(|(name, _)| name == "warden-controller"))
    };
    let (_, controller) = wait_for("its controller", PATIENCE, find).await.unwrap();
    signal(controller, Signal::KILL);
    let ended = tokio::time::timeout(NOTICED, demo.end(&programs)).await;
    let (status, text) = ended.expect("it notices");
    assert_eq!(status.code(), Some(1), "{text}");
    let told = text.lines().find(|line| line.contains("The demo failed"));
    let told = told.unwrap_or_else(|| panic!("{text}"));
    assert!(told.contains("warden-controller"), "{told}");
}

/// Somebody else's cordon of another node while it runs: the demo says what it read, whoever it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_demo_after_which_a_node_is_not_as_it_was_fails() {
    let mut demo = Demo::start(false);
    demo.until("a training run").await;
    let admin = || async {
        let programs = children_of(demo.child.id().unwrap_or_default());
        let controller = programs
            .iter()
            .find(|(name, _)| name == "warden-controller");
        Ok(controller.and_then(|(_, id)| kubeconfig_of(*id)))
    };
    let path = wait_for("its controller", PATIENCE, admin).await.unwrap();
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    nodes::set_cordon(&client, "gpu-00007", true).await.unwrap();
    let programs = demo.programs();
    let (status, text) = demo.end(&programs).await;
    assert_eq!(status.code(), Some(1), "{text}");
    let told = text.lines().find(|line| line.contains("The demo failed"));
    let told = told.unwrap_or_else(|| panic!("{text}"));
    assert!(told.contains("nodes differ from what they were"), "{told}");
}

/// The value of `--kubeconfig` of a process.
fn kubeconfig_of(id: u32) -> Option<PathBuf> {
    let command = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let command = String::from_utf8(command).ok()?;
    let mut words = command.split('\0');
    words.find(|word| *word == "--kubeconfig")?;
    words.next().map(PathBuf::from)
}
