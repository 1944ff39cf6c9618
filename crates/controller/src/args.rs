//! The command line.

use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use health_event::NodeName;

const AFTER_HELP: &str = "\
A variable that is set and empty counts as not set.

How far it acts is `profile` in its file: silent, observe (the default: it writes node conditions and \
Events, and touches no node otherwise), cordon, drain, remediate. Only one controller of a cluster acts at a \
time; it keeps its events in a folder of its own (store.path).

Before a start: `warden config check FILE` says what is wrong with a file, and what acts with it. While it \
runs: `warden status`, and /healthz, /readyz and /metrics of api.listen.

Documentation, in Warden's repository: docs/configuration.md (every key), docs/operations.md (running it), \
docs/metrics.md.

Exit codes: 0 it was told to stop; 1 it could not go on; 2 wrong usage, or a configuration that can't be \
used.";

/// Warden's controller, one a cluster: takes in what the agents find, takes bad nodes out of scheduling,
/// drains them, has them repaired, and gives them back.
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
    /// with key, value, allowed), and exits with 2 if anything is; `[[warning]]` is what is odd, and
    /// `acts` what Warden does on its own with it.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn help_says_what_it_is_for_each_option_and_where_the_pages_are() {
        let help = Args::command().render_long_help().to_string();
        for part in [
            "Warden's controller",
            "observe (the default",
            "warden config check FILE",
        ] {
            assert!(help.contains(part), "{part:?} is not in {help}");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let words = help.split(|c: char| !c.is_alphanumeric() && !"/-_.".contains(c));
        let pages = words.filter(|word| word.starts_with("docs/"));
        let pages: Vec<&str> = pages.map(|page| page.trim_end_matches('.')).collect();
        assert_eq!(pages.len(), 3, "{help}");
        for page in pages {
            assert!(root.join(page).is_file(), "{page} is not there");
        }
        for option in Args::command().get_arguments() {
            assert!(option.get_help().is_some(), "{option:?} says nothing");
        }
    }
}
