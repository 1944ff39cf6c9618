//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Takes in health events, keeps them, and takes bad nodes out of scheduling.
#[derive(Debug, Parser)]
#[command(name = "warden-controller", version, about)]
pub struct Args {
    /// Configuration (TOML); without one the defaults are used.
    #[arg(long, value_name = "FILE", env = "WARDEN_CONFIG")]
    pub config: Option<PathBuf>,

    /// Kubeconfig; without one KUBECONFIG, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Without TLS and tokens, on loopback addresses only: for demo and tests. The API asks for the
    /// token that is written to the file `api-token` in the store's folder.
    #[arg(long)]
    pub insecure_local: bool,

    /// Only check a configuration: prints everything that is wrong with it as TOML (`[[fault]]`
    /// with key, value, allowed), and exits with 2 if anything is.
    #[arg(long, value_name = "FILE")]
    pub check_config: Option<PathBuf>,

    /// Stop, as kill -9 would, at a named point, or at the N-th pass of it (test builds).
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "POINT[:N]")]
    pub crash_at: Option<crate::crash::Pass>,
}
