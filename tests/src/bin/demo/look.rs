//! The programs that people use, pointed at the demo's cluster.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::view::View;
use e2e::{Controller, programs};
use testbed::Testbed;
use tokio::process::Command;

use crate::story::VICTIM;

/// A call of the command line on loopback that takes longer is stuck.
const CALL: Duration = Duration::from_secs(20);

/// Shows what `warden COMMAND` says.
///
/// # Errors
/// It can't be started, or can't reach the controller.
pub(crate) async fn warden(
    view: &View,
    controller: &Controller,
    command: &[&str],
) -> anyhow::Result<()> {
    view.note(&format!("$ warden {}", command.join(" ")));
    let mut call = Command::new(programs::program("warden")?);
    call.args(command)
        .args([
            "--color",
            if view.is_terminal() {
                "always"
            } else {
                "never"
            },
        ])
        .env("WARDEN_SERVER", server(controller))
        .env("WARDEN_TOKEN_FILE", token_file(controller))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(CALL, call.output())
        .await
        .with_context(|| format!("warden {command:?} gave no answer within {CALL:?}"))??;
    // 1 says that the object asked for is not well, which is what is shown here.
    ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "warden {command:?}: {}, {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        view.quote(line);
    }
    Ok(())
}

fn server(controller: &Controller) -> String {
    format!("http://{}", controller.api)
}

fn token_file(controller: &Controller) -> std::path::PathBuf {
    controller.store().join("api-token")
}

/// What a person types to look around while it is left running, as it can be pasted.
pub(crate) fn commands(
    testbed: &Testbed,
    controller: &Controller,
    socket: &Path,
) -> anyhow::Result<Vec<String>> {
    let warden = programs::program("warden")?;
    let folder = warden.parent().context("the programs have no folder")?;
    let inject = format!(
        "warden inject SysLogsXIDError --socket {} --code 79 --entity PCI=0000:18:00",
        socket.display()
    );
    Ok(vec![
        format!("export PATH=\"{}:$PATH\"", folder.display()),
        format!("export WARDEN_SERVER={}", server(controller)),
        format!(
            "export WARDEN_TOKEN_FILE={}",
            token_file(controller).display()
        ),
        format!("export KUBECONFIG={}", testbed.kubeconfig().display()),
        String::new(),
        "warden status".to_owned(),
        format!("warden timeline {VICTIM}"),
        "kubectl get nodes".to_owned(),
        String::new(),
        "# Break another GPU so that a person has to look, see what is said of it, and mend it:"
            .to_owned(),
        // An action without a repair: else the node reboots meanwhile, and its agent's socket with it.
        format!("{inject} --fatal --action CONTACT_SUPPORT"),
        // Pasted as a whole, each look would come before anything was decided.
        "sleep 2".to_owned(),
        format!("warden explain {VICTIM}"),
        format!("{inject} --healthy"),
        "sleep 2".to_owned(),
        format!("warden explain {VICTIM}"),
    ])
}
