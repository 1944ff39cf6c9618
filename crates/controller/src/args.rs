//! The command line.

use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use health_event::NodeName;

const AFTER_HELP: &str = "A variable that is set and empty counts as not set.";

/// Takes in health events, keeps them, and takes bad nodes out of scheduling.
#[derive(Debug, Parser)]
#[command(name = "warden-controller", version, about, after_help = AFTER_HELP)]
#[command(override_usage = "warden-controller [OPTIONS]")]
pub struct Args {
    /// Configuration (TOML); without one the defaults are used.
    #[arg(long, value_name = "FILE", env = "WARDEN_CONFIG")]
    pub config: Option<PathBuf>,

    /// Kubeconfig; without one KUBECONFIG, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Node that the controller runs on (a pod's `spec.nodeName`): it is drained and repaired last.
    #[arg(long, value_name = "NODE", env = "NODE_NAME", value_parser = node_name)]
    pub node_name: Option<NodeName>,

    /// Without TLS and tokens, on loopback addresses only: for demo and tests. The API asks for the
    /// token that is written to the file `api-token` in the store's folder.
    #[arg(long)]
    pub insecure_local: bool,

    /// Only check a configuration: prints everything that is wrong with it as TOML (`[[fault]]`
    /// with key, value, allowed), and exits with 2 if anything is; `[[warning]]` is what is odd.
    #[arg(long, value_name = "FILE")]
    pub check_config: Option<PathBuf>,

    /// Stop, as kill -9 would, at a named point, or at the N-th pass of it (test builds).
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "POINT[:N]")]
    pub crash_at: Option<crate::crash::Pass>,
}

fn node_name(text: &str) -> Result<NodeName, String> {
    NodeName::new(text).map_err(|error| error.to_string())
}

impl Args {
    /// Reads the command line and the environment; ends the process on wrong usage.
    pub fn read() -> Self {
        let command = Self::command().mut_args(|argument| {
            let value = argument.get_env().and_then(std::env::var_os);
            if value.is_some_and(|value| value.is_empty()) {
                argument.env(Resettable::Reset)
            } else {
                argument
            }
        });
        let matches = command.get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}
