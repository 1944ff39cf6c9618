//! The simulated provider as a program, for the demo and for trying things by hand.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use testbed::{Behaviour, KeyedCertificate, ProviderOptions, SimProvider};
use tokio::signal::unix::{SignalKind, signal};

/// A stand-in for a cloud provider: serves NVSentinel's CSPProviderService and "reboots" the simulated
/// nodes of a testbed. It can't reboot anything real.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Kubeconfig of the testbed.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
    /// How long a node is down, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    down_milliseconds: u64,
    /// Certificate, PEM; without one it serves plaintext.
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File with the bearer token that is let in; without one everybody is.
    #[arg(long)]
    token_file: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => Some(KeyedCertificate {
            certificate_pem: read(certificate)?,
            key_pem: read(key)?,
        }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            bail!("give both --tls-cert and --tls-key, or neither")
        }
    };
    let tokens = match &arguments.token_file {
        Some(path) => vec![read(path)?.trim().to_owned()],
        None => Vec::new(),
    };
    let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)
        .with_context(|| format!("reading {}", arguments.kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let provider = SimProvider::start(ProviderOptions {
        listen: arguments.listen,
        tls,
        tokens,
        client: kube::Client::try_from(config)?,
        behaviour: Behaviour {
            down_for: Duration::from_millis(arguments.down_milliseconds),
            ..Behaviour::default()
        },
    })
    .await?;
    let address = provider.address();
    writeln!(
        std::io::stdout(),
        "simulated provider on {address}: a stand-in that reboots simulated nodes only"
    )?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
