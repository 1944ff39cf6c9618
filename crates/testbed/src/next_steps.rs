//! What a person does next with a running testbed: files and commands for a controller, an agent and
//! `warden` against it. `tests/tests/testbed.rs` runs the commands as they are printed.

use std::path::Path;

use anyhow::Context as _;
use testbed::{NodeSpec, Testbed};

/// The namespace that the controller keeps its own objects in.
const NAMESPACE: &str = "warden";

/// Makes what the commands need, and gives the text to print.
pub(crate) async fn prepare(testbed: &Testbed, nodes: usize) -> anyhow::Result<String> {
    testbed.ensure_namespace(NAMESPACE).await?;
    let folder = testbed.folder();
    let [ingest, api] = testbed.spare_ports();
    let at = folder.display();
    let configuration = format!(
        "# Of `make testbed`: acts at once, unlike an installation.\nprofile = \"cordon\"\n\n[store]\n\
         path = \"{at}/controller\"\n\n[ingest]\nlisten = \"127.0.0.1:{ingest}\"\n\n[api]\n\
         listen = \"127.0.0.1:{api}\"\n\n[quarantine]\nfirst_action_delay = \"0s\"\n"
    );
    write(folder, "controller.toml", &configuration)?;
    let mut text = format!(
        "\n    export KUBECONFIG={}\n\nEach in a terminal of its own, from this folder. A controller \
         (it acts at once):\n\n    KUBECONFIG={} cargo run -q --bin warden-controller -- \
         --insecure-local --config {at}/controller.toml\n",
        testbed.kubeconfig().display(),
        testbed.kubeconfig().display(),
    );
    if let Some(node) = NodeSpec::numbered(0..nodes).first() {
        write(folder, "boot-id", &node.boot_id)?;
        let (name, machine) = (&node.name, &node.system_uuid);
        let asks =
            format!("--server http://127.0.0.1:{api} --token-file {at}/controller/api-token");
        text = format!(
            "{text}\nAn agent of node {name} (it reads no kernel log):\n\n    cargo run -q --bin \
             warden-agent -- --node-name {name} --machine-id {machine} --boot-id-file {at}/boot-id \
             --kernel-log off --state-dir {at}/agent --socket {at}/agent.sock --controller \
             http://127.0.0.1:{ingest} --insecure-local\n\nA fault, what becomes of it, and its \
             end:\n\n    cargo run -q --bin warden -- inject GpuMemWatch --agent gpu-health-monitor \
             --code 48 --entity GPU=0 --fatal --socket {at}/agent.sock\n    cargo run -q --bin \
             warden -- explain {name} {asks}\n    cargo run -q --bin warden -- inject GpuMemWatch \
             --agent gpu-health-monitor --code 48 --entity GPU=0 --healthy --socket {at}/agent.sock\n"
        );
    }
    Ok(format!(
        "{text}\nlogs: {}\nCtrl-C stops it",
        folder.join("log").display()
    ))
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
