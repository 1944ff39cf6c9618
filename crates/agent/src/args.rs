//! Flags. Each stands above its key in the file.

use std::path::PathBuf;

use clap::Parser;

/// Finds hardware faults on this node and tells the controller.
#[derive(Debug, Parser)]
#[command(name = "warden-agent", version, about)]
pub(crate) struct Args {
    /// TOML file; its keys are in the configuration reference.
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
    /// The flags given, as (key of the file, value).
    pub(crate) fn values(&self) -> Vec<(&'static str, String)> {
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
        let pairs = [
            ("node_name", node_name.clone()),
            ("state_dir", state_dir.clone()),
            ("socket.path", socket.clone()),
            ("boot_id_file", boot_id_file.clone()),
            ("machine_id", machine_id.clone()),
            ("kernel_log.source", kernel_log.clone()),
            ("kernel_log.start", kernel_log_start.clone()),
            ("kernel_log.accept_user_records", yes(accept_user_records)),
            (
                "kernel_log.first_start_lookback_seconds",
                first_start_lookback.clone(),
            ),
            ("controller.url", controller.clone()),
            ("controller.token_file", token_file.clone()),
            ("controller.ca_file", ca_file.clone()),
            ("controller.server_name", server_name.clone()),
            ("controller.insecure_local", yes(insecure_local)),
            ("admin.listen", admin_listen.clone()),
            ("spool.max_bytes", spool_max_bytes.clone()),
            ("log.format", log_format.clone()),
            ("log.filter", log_filter.clone()),
        ];
        pairs
            .into_iter()
            .filter_map(|(key, value)| value.map(|value| (key, value)))
            .collect()
    }
}
