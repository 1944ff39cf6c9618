//! Flags. Each stands above its key in the file.

use std::path::PathBuf;

use agent::config::Given;
use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};

const AFTER_HELP: &str = "\
Each flag stands above its key in the file. A variable that is set and empty counts as not set.

It reads the kernel log and takes events of other monitors from its socket, keeps everything on disk until \
the controller has it, and never talks to the Kubernetes API server. To see what it would find in a log: \
`warden scan FILE`. While it runs: /healthz and /metrics of --admin-listen, and `warden explain NODE`.

Documentation, in Warden's repository: docs/configuration.md (every key), docs/operations.md (running it), \
docs/metrics.md.

Exit codes: 0 it was told to stop; 1 it could not go on; 2 wrong usage, or a configuration that can't be \
used.";

/// Warden's agent, one a node: finds hardware faults on it and tells the controller.
#[derive(Debug, Parser)]
#[command(name = "warden-agent", version, about, after_help = AFTER_HELP)]
#[command(override_usage = "warden-agent [OPTIONS]")]
pub(crate) struct Args {
    /// TOML file; its keys are in docs/configuration.md.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// This node's name.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Folder of the spool [default: /var/lib/warden-agent].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Unix socket for other monitors, or off [default: /var/run/nvsentinel/nvsentinel.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// File that holds the boot id [default: /proc/sys/kernel/random/boot_id].
    #[arg(long, value_name = "FILE")]
    boot_id_file: Option<String>,
    /// Machine id, instead of the system UUID.
    #[arg(long, value_name = "ID")]
    machine_id: Option<String>,
    /// Where kernel log records come from: kmsg, pipe:PATH (a FIFO in the form of /dev/kmsg), off.
    #[arg(long, value_name = "SOURCE")]
    kernel_log: Option<String>,
    /// Where to begin when no position of this boot is saved: auto, end or a sequence number.
    #[arg(long, value_name = "START")]
    kernel_log_start: Option<String>,
    /// Believe kernel log records that user processes wrote: for demos and tests.
    #[arg(long)]
    accept_user_records: bool,
    /// With no saved position at all, records older than this are only stored [default: 600].
    #[arg(long, value_name = "SECONDS")]
    first_start_lookback: Option<String>,
    /// The controller, https://HOST:PORT; without it events are only kept.
    #[arg(long, value_name = "URL")]
    controller: Option<String>,
    /// File with the token for the controller; read anew when it changes.
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// CA bundle of the controller; may appear after the start.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<String>,
    /// Name in the controller's certificate, if not the URL's host.
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Allow http:// to a loopback address.
    #[arg(long)]
    insecure_local: bool,
    /// Where /healthz and /metrics are served, or off [default: off].
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin_listen: Option<String>,
    /// Bytes of events on disk at most [default: 67108864].
    #[arg(long, value_name = "BYTES")]
    spool_max_bytes: Option<String>,
    /// Log format: auto, json or pretty.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Log filter: a level, or TARGET=LEVEL parted by commas.
    #[arg(long, env = "WARDEN_LOG", value_name = "FILTER")]
    log_filter: Option<String>,
    /// Only check a configuration: prints everything that is wrong with it as TOML (`[[fault]]`
    /// with key, value, allowed), and exits with 2 if anything is.
    #[arg(long, value_name = "FILE")]
    pub(crate) check_config: Option<PathBuf>,
    /// For tests: die at this place.
    #[cfg(debug_assertions)]
    #[arg(long, hide = true, value_name = "NAME[:N]")]
    pub(crate) crash_at: Option<String>,
}

impl Args {
    /// Reads the command line and the environment; ends the process on wrong usage.
    pub(crate) fn read() -> (Self, Vec<Given>) {
        let command = Self::command().mut_args(|argument| {
            let value = argument.get_env().and_then(std::env::var_os);
            if value.is_some_and(|value| value.is_empty()) {
                argument.env(Resettable::Reset)
            } else {
                argument
            }
        });
        let matches = command.get_matches();
        let args = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let given = args.given(&matches);
        (args, given)
    }

    /// What was given, each with its key in the file.
    fn given(&self, matches: &ArgMatches) -> Vec<Given> {
        let Self {
            config: _,
            check_config: _,
            node_name,
            state_dir,
            socket,
            boot_id_file,
            machine_id,
            kernel_log,
            kernel_log_start,
            accept_user_records,
            first_start_lookback,
            controller,
            token_file,
            ca_file,
            server_name,
            insecure_local,
            admin_listen,
            spool_max_bytes,
            log_format,
            log_filter,
            #[cfg(debug_assertions)]
                crash_at: _,
        } = self;
        let yes = |given: &bool| given.then(|| "true".to_owned());
        let either =
            |id: &str, flag: &'static str, variable: &'static str| match matches.value_source(id) {
                Some(ValueSource::EnvVariable) => variable,
                _ => flag,
            };
        let values = [
            (
                "node_name",
                either("node_name", "--node-name", "NODE_NAME"),
                node_name.clone(),
            ),
            ("state_dir", "--state-dir", state_dir.clone()),
            ("socket.path", "--socket", socket.clone()),
            ("boot_id_file", "--boot-id-file", boot_id_file.clone()),
            ("machine_id", "--machine-id", machine_id.clone()),
            ("kernel_log.source", "--kernel-log", kernel_log.clone()),
            (
                "kernel_log.start",
                "--kernel-log-start",
                kernel_log_start.clone(),
            ),
            (
                "kernel_log.accept_user_records",
                "--accept-user-records",
                yes(accept_user_records),
            ),
            (
                "kernel_log.first_start_lookback_seconds",
                "--first-start-lookback",
                first_start_lookback.clone(),
            ),
            ("controller.url", "--controller", controller.clone()),
            ("controller.token_file", "--token-file", token_file.clone()),
            ("controller.ca_file", "--ca-file", ca_file.clone()),
            (
                "controller.server_name",
                "--server-name",
                server_name.clone(),
            ),
            (
                "controller.insecure_local",
                "--insecure-local",
                yes(insecure_local),
            ),
            ("admin.listen", "--admin-listen", admin_listen.clone()),
            (
                "spool.max_bytes",
                "--spool-max-bytes",
                spool_max_bytes.clone(),
            ),
            ("log.format", "--log-format", log_format.clone()),
            (
                "log.filter",
                either("log_filter", "--log-filter", "WARDEN_LOG"),
                log_filter.clone(),
            ),
        ];
        let given = values.into_iter();
        given
            .filter_map(|(key, name, value)| {
                Some(Given {
                    key,
                    name,
                    value: value?,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn help_says_what_it_is_for_each_option_and_where_the_pages_are() {
        let help = Args::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "Warden's agent",
            "warden scan FILE",
            "never talks to the Kubernetes API server",
        ] {
            assert!(help.contains(part), "{part:?} is not in {help}");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let words = help.split(|c: char| !c.is_alphanumeric() && !"/-_.".contains(c));
        let pages = words.filter(|word| word.starts_with("docs/"));
        let pages: Vec<&str> = pages.map(|page| page.trim_end_matches('.')).collect();
        assert!(pages.len() >= 3, "{help}");
        for page in pages {
            assert!(root.join(page).is_file(), "{page} is not there");
        }
        for option in Args::command().get_arguments() {
            assert!(option.get_help().is_some(), "{option:?} says nothing");
        }
    }

    #[test]
    fn every_value_is_named_by_a_flag_that_exists_and_every_key_but_one_has_one() {
        let command = Args::command();
        let line = command.get_arguments().filter_map(|argument| {
            let long = argument.get_long().filter(|long| *long != "crash-at")?;
            let value = if argument.get_action().takes_values() {
                "=x"
            } else {
                ""
            };
            Some(format!("--{long}{value}"))
        });
        let line: Vec<String> = std::iter::once("warden-agent".to_owned())
            .chain(line)
            .collect();
        let matches = Args::command().get_matches_from(&line);
        let given = Args::from_arg_matches(&matches).unwrap().given(&matches);
        for Given { name, value, .. } in &given {
            let spelt = line
                .iter()
                .any(|flag| flag.split('=').next() == Some(*name));
            assert!(spelt, "there is no {name} (= {value})");
        }
        let keys = agent::config::KEYS.iter().map(|(key, _)| *key);
        let without: Vec<&str> = keys
            .filter(|key| given.iter().all(|g| g.key != *key))
            .collect();
        assert_eq!(without, ["socket.uids"], "as docs/configuration.md says");
    }
}
