//! Proves on a running control plane what the crate's first lines promise. All tests but those
//! about starting and ending share one testbed; each uses nodes and a namespace of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;
use testbed::{
    Component, NodeSpec, Options, Testbed, boot_id, is_ready, node_of, ready_condition, wait_for,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::OnceCell;

const AUDIENCE: &str = "warden";
const SOON: Duration = Duration::from_mins(1);

async fn shared() -> &'static Testbed {
    static SHARED: OnceCell<Testbed> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| {
            Testbed::start(Options {
                nodes: 4,
                audit_log: true,
                ..Options::default()
            })
        })
        .await
        .expect("the testbed starts")
}

/// Adds nodes for one test, so that its levers disturb no other.
async fn own_nodes(testbed: &Testbed, names: &[&str]) -> anyhow::Result<()> {
    let nodes: Vec<NodeSpec> = names.iter().copied().map(NodeSpec::new).collect();
    testbed.add_nodes(&nodes).await?;
    testbed.wait_nodes_ready(names, SOON).await
}

#[tokio::test]
async fn nodes_of_the_options_are_ready_with_their_identity() -> anyhow::Result<()> {
    let testbed = shared().await;
    let node = Api::<Node>::all(testbed.admin()).get("gpu-00003").await?;
    assert!(is_ready(&node));
    assert_eq!(node.labels()["nvidia.com/gpu.present"], "true");
    let expected = &NodeSpec::numbered(3..4)[0];
    let seen = node.status.and_then(|status| status.node_info).unwrap();
    assert_eq!(seen.system_uuid, expected.system_uuid);
    assert_eq!(seen.boot_id, expected.boot_id);
    Ok(())
}

#[tokio::test]
async fn deployment_runs_on_the_simulated_nodes() -> anyhow::Result<()> {
    let testbed = shared().await;
    testbed.deploy("deploy", "train", 8, SOON).await
}

#[tokio::test]
async fn evicted_pod_goes_and_a_slow_one_only_after_its_delay() -> anyhow::Result<()> {
    let testbed = shared().await;
    own_nodes(testbed, &["evict-0"]).await?;
    let names = testbed.create_pods_on("evict-0", "evict", 3).await?;
    let pods: Api<Pod> = Api::namespaced(testbed.admin(), "evict");
    let delay = json!({ "metadata": { "annotations": {
        "testbed.warden.dev/delete-delay": "1h",
    } } });
    pods.patch(&names[0], &PatchParams::default(), &Patch::Merge(delay))
        .await?;
    for name in &names {
        pods.evict(name, &EvictParams::default()).await?;
    }
    for name in &names[1..] {
        wait_for("an evicted pod to go", SOON, || async {
            Ok(pods.get_opt(name).await?.is_none().then_some(()))
        })
        .await?;
    }
    let stuck = pods.get(&names[0]).await?;
    assert!(stuck.metadata.deletion_timestamp.is_some());
    pods.delete(&names[0], &DeleteParams::default().grace_period(0))
        .await?;
    Ok(())
}

#[tokio::test]
async fn not_ready_and_boot_id_levers_show_on_the_node_and_go_back() -> anyhow::Result<()> {
    let testbed = shared().await;
    own_nodes(testbed, &["lever-0"]).await?;
    let nodes: Api<Node> = Api::all(testbed.admin());

    testbed.set_not_ready("lever-0", "KubeletStopped").await?;
    testbed.set_not_ready("lever-0", "DiskBroken").await?;
    let node = nodes.get("lever-0").await?;
    assert_eq!(ready_condition(&node), Some(("False", "DiskBroken")));
    testbed
        .wait_nodes(&["lever-0"], "be tainted", SOON, |node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_some_and(|taints| taints.iter().any(|t| t.key.ends_with("not-ready")))
        })
        .await?;

    testbed.reboot("lever-0", "boot-after").await?;
    let node = nodes.get("lever-0").await?;
    assert_eq!(boot_id(&node), Some("boot-after"));
    assert_eq!(ready_condition(&node), Some(("False", "DiskBroken")));

    testbed.set_ready("lever-0").await?;
    let node = nodes.get("lever-0").await?;
    assert!(is_ready(&node));
    assert_eq!(boot_id(&node), Some("boot-after"));
    Ok(())
}

#[tokio::test]
async fn lever_on_an_unknown_node_is_an_error_that_names_it() {
    let testbed = shared().await;
    let error = testbed.set_not_ready("nobody", "Any").await.unwrap_err();
    assert!(
        format!("{error:#}").contains("the node nobody"),
        "{error:#}"
    );
}

#[tokio::test]
async fn wait_past_its_deadline_names_a_missing_node() {
    let testbed = shared().await;
    let short = Duration::from_millis(300);
    let error = testbed
        .wait_nodes_ready(&["gpu-00000", "nobody"], short)
        .await
        .unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("1 of 2 nodes to be ready"), "{text}");
    assert!(text.contains("nobody"), "{text}");
}

#[tokio::test]
async fn pod_bound_token_names_its_node_and_ends_with_its_pod() -> anyhow::Result<()> {
    let testbed = shared().await;
    testbed.service_account("tokens", "agent").await?;
    let pod = testbed
        .pod_on_node("tokens", "agent-0", "agent", "gpu-00002")
        .await?;
    let token = testbed
        .node_bound_token("tokens", "agent", "agent-0", AUDIENCE)
        .await?;
    let review = testbed.review_token(&token, AUDIENCE).await?;
    assert_eq!(review.authenticated, Some(true));
    assert_eq!(node_of(&review), Some("gpu-00002"));
    let other = testbed.review_token(&token, "other").await?;
    assert_ne!(other.authenticated, Some(true));

    Api::<Pod>::namespaced(testbed.admin(), "tokens")
        .delete(&pod.name_any(), &DeleteParams::default())
        .await?;
    // The API server remembers good tokens for 10 s.
    wait_for("the token of a deleted pod to be refused", SOON, || async {
        let review = testbed.review_token(&token, AUDIENCE).await?;
        Ok((review.authenticated != Some(true)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn service_account_may_do_what_its_role_says_and_nothing_else() -> anyhow::Result<()> {
    let testbed = shared().await;
    testbed.service_account("roles", "reader").await?;
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["nodes".to_owned()]),
        verbs: vec!["list".to_owned()],
        ..PolicyRule::default()
    };
    testbed
        .bind_cluster_role("roles", "reader", vec![rule])
        .await?;
    let token = testbed
        .token("roles", "reader", &[], Duration::from_mins(10))
        .await?;
    let client = testbed.client_for_token(&token).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    assert!(nodes.list(&ListParams::default()).await?.items.len() >= 4);
    assert_eq!(code(nodes.get("gpu-00000").await), Some(403));
    let pods: Api<Pod> = Api::namespaced(client, "roles");
    assert_eq!(code(pods.list(&ListParams::default()).await), Some(403));
    Ok(())
}

/// The HTTP status of a refusal.
fn code<T>(answer: kube::Result<T>) -> Option<u16> {
    match answer {
        Err(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

#[tokio::test]
async fn kubeconfig_of_a_user_is_that_user() -> anyhow::Result<()> {
    let testbed = shared().await;
    let path = testbed.kubeconfig_for_user("system:node:gpu-00001", &["system:nodes"])?;
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default())
            .await?;
    let nodes: Api<Node> = Api::all(Client::try_from(config)?);
    nodes.get("gpu-00001").await?;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "mine": "no" } } }));
    let other = nodes
        .patch("gpu-00002", &PatchParams::default(), &label)
        .await;
    assert_eq!(code(other), Some(403));
    Ok(())
}

#[tokio::test]
async fn audit_log_tells_who_patched_what() -> anyhow::Result<()> {
    let testbed = shared().await;
    own_nodes(testbed, &["audit-0"]).await?;
    let patch = json!({ "metadata": { "labels": { "audited": "yes" } } });
    Api::<Node>::all(testbed.admin())
        .patch("audit-0", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let event = wait_for("the patch in the audit log", SOON, || async {
        let mut events = testbed.audit_events()?.into_iter();
        Ok(events.find(|event| event.name == "audit-0" && event.object == Some(patch.clone())))
    })
    .await?;
    assert!(event.is_write());
    assert_eq!(
        (event.user.as_str(), event.verb.as_str()),
        ("admin", "patch")
    );
    assert_eq!((event.resource.as_str(), event.code), ("nodes", 200));
    Ok(())
}

#[tokio::test]
async fn testbeds_side_by_side_are_apart_and_leave_nothing() -> anyhow::Result<()> {
    let quick_grace = Options {
        nodes: 1,
        node_grace: Some(Duration::from_secs(10)),
        ..Options::default()
    };
    let starts = [quick_grace, Options::default()].map(Testbed::start);
    let testbeds = try_join_all(starts).await?;
    let [quick, plain] = testbeds.as_slice() else {
        unreachable!("two were started")
    };
    assert_ne!(quick.api_url(), plain.api_url());
    let names = |testbed: &Testbed| {
        let nodes: Api<Node> = Api::all(testbed.admin());
        async move {
            nodes
                .list(&ListParams::default())
                .await
                .map(|list| list.items.len())
        }
    };
    assert_eq!((names(quick).await?, names(plain).await?), (1, 0));

    quick.stop_heartbeats("gpu-00000").await?;
    quick
        .wait_nodes(&["gpu-00000"], "be Unknown", SOON, |node| {
            ready_condition(node).is_some_and(|(status, _)| status == "Unknown")
        })
        .await?;
    quick.resume_heartbeats("gpu-00000").await?;
    quick.wait_nodes_ready(&["gpu-00000"], SOON).await?;

    let (folders, entries): (Vec<_>, Vec<_>) = testbeds.iter().map(traces).unzip();
    drop(testbeds);
    for path in folders.iter().chain(entries.iter().flatten()) {
        assert!(!path.exists(), "{} is still there", path.display());
    }
    Ok(())
}

#[tokio::test]
async fn restarted_api_server_and_crashed_etcd_come_back_with_their_data() -> anyhow::Result<()> {
    let testbed = Testbed::start(Options {
        nodes: 1,
        ..Options::default()
    })
    .await?;
    let nodes: Api<Node> = Api::all(testbed.admin());
    let before = testbed.process_id(Component::ApiServer);
    testbed.restart(Component::ApiServer).await?;
    assert_ne!(testbed.process_id(Component::ApiServer), before);
    wait_for("an old client to work after the restart", SOON, || async {
        Ok(nodes.get_opt("gpu-00000").await?)
    })
    .await?;

    testbed.kill(Component::Etcd);
    assert_eq!(testbed.process_id(Component::Etcd), None);
    testbed.start_component(Component::Etcd).await?;
    wait_for("the node after a crash of etcd", SOON, || async {
        Ok(nodes.get_opt("gpu-00000").await?)
    })
    .await?;
    testbed.set_not_ready("gpu-00000", "AfterAll").await
}

/// The folder, and what /proc holds for each process.
fn traces(testbed: &Testbed) -> (PathBuf, Vec<PathBuf>) {
    let entries = Component::ALL.map(|component| {
        let id = testbed.process_id(component).expect("it runs");
        PathBuf::from(format!("/proc/{id}"))
    });
    (testbed.folder().to_owned(), entries.into())
}

#[tokio::test]
async fn killed_owner_leaves_neither_processes_nor_folder() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let bed = folder.path().join("bed");
    let mut owner = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .args(["--nodes", "0", "--dir"])
        .arg(&bed)
        .stdout(Stdio::null())
        .spawn()?;
    let children = wait_for("five programs under the owner", 2 * SOON, || async {
        let children = children_in(&bed)?;
        Ok((children.len() == Component::ALL.len()).then_some(children))
    })
    .await?;
    owner.kill()?;
    owner.wait()?;
    wait_for("processes and folder to go", SOON, || async {
        // One that its new parent has not reaped yet has no program any more.
        let ended = |entry: &PathBuf| std::fs::read_link(entry.join("exe")).is_err();
        Ok((!bed.exists() && children.iter().all(ended)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn program_that_dies_under_make_testbed_ends_it_by_name() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let bed = folder.path().join("bed");
    let mut owner = tokio::process::Command::new(env!("CARGO_BIN_EXE_testbed"))
        .args(["--nodes", "0", "--dir"])
        .arg(&bed)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = BufReader::new(owner.stdout.take().context("its output is ours")?).lines();
    tokio::time::timeout(2 * SOON, async {
        while let Some(line) = said.next_line().await? {
            if line.contains("Ctrl-C stops it") {
                return anyhow::Ok(());
            }
        }
        anyhow::bail!("it ended instead of becoming ready")
    })
    .await??;
    let is_etcd = |entry: &&PathBuf| {
        std::fs::read_to_string(entry.join("cmdline")).is_ok_and(|line| line.contains("/etcd\0"))
    };
    let children = children_in(&bed)?;
    let etcd = children.iter().find(is_etcd).context("etcd runs")?;
    let id = etcd
        .file_name()
        .and_then(|id| id.to_str())
        .context("a number")?;
    let id = rustix::process::Pid::from_raw(id.parse()?).context("a number")?;
    rustix::process::kill_process(id, rustix::process::Signal::KILL)?;
    let output = tokio::time::timeout(SOON / 6, owner.wait_with_output()).await??;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(
        told.contains("etcd") && told.contains("signal: 9"),
        "{told}"
    );
    assert!(!bed.exists());
    Ok(())
}

/// The entries in /proc of the control plane's programs that work in `folder`.
fn children_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("listing processes")? {
        let path = entry?.path();
        // Others' processes and those that end meanwhile cannot be read.
        if std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == folder) {
            found.push(path);
        }
    }
    Ok(found)
}
