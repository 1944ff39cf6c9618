//! What a person may choose: one TOML file and flags over it. Every unknown key and bad value is
//! reported, all at once, before anything starts.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use health_event::NodeName;
use health_event::text::{counted, harmless, named};
use jiff::SignedDuration;
use tonic::transport::Uri;

/// Bytes of events on disk, default: some 150,000 events, a day of a storm's repeats compacted.
pub const DEFAULT_SPOOL_BYTES: u64 = 64 * 1024 * 1024;
/// How far back a first start believes what it reads, default.
pub const DEFAULT_LOOKBACK: SignedDuration = SignedDuration::from_mins(10);
/// Where the kernel tells the boot id.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Where the socket is on the host; monitors of the reference expect it there.
pub const DEFAULT_SOCKET: &str = "/var/run/nvsentinel/nvsentinel.sock";

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node: NodeName,
    /// Spool, `refused/`.
    pub state_dir: PathBuf,
    /// The unix socket; none = not served.
    pub socket: Option<PathBuf>,
    /// User ids that may use the socket; empty = all.
    pub socket_uids: Vec<u32>,
    /// File that holds the boot id.
    pub boot_id_file: PathBuf,
    /// The machine's id, if it is not to be read from the system.
    pub machine_id: Option<String>,
    /// Where events go; none = they are only kept in the spool.
    pub controller: Option<Controller>,
    /// The kernel log.
    pub kernel_log: KernelLog,
    /// Bytes of events on disk at most.
    pub spool_bytes: u64,
    /// Where `/healthz` and `/metrics` are served; none = not served.
    pub admin: Option<SocketAddr>,
}

impl Config {
    /// What stands in for the real thing, for status and events: empty on a normal node.
    pub fn stand_ins(&self) -> Vec<String> {
        let mut list = Vec::new();
        match &self.kernel_log.source {
            Source::Pipe(path) => list.push(format!("kernel-log=pipe:{}", path.display())),
            Source::Kmsg | Source::Off => {}
        }
        match self.kernel_log.start {
            Start::End => list.push("kernel-log-start=end".into()),
            Start::Sequence(first) => list.push(format!("kernel-log-start={first}")),
            Start::Auto => {}
        }
        if self.boot_id_file.as_os_str() != BOOT_ID_FILE {
            list.push(format!("boot-id-file={}", self.boot_id_file.display()));
        }
        if let Some(machine) = &self.machine_id {
            list.push(format!("machine-id={machine}"));
        }
        list
    }
}

/// The controller, and how it is known to be the one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// `https://HOST:PORT`; `http://` only to a loopback address with `insecure_local`.
    pub url: Uri,
    /// Projected service account token, read anew whenever it changes.
    pub token_file: Option<PathBuf>,
    /// CA bundle; may appear later.
    pub ca_file: Option<PathBuf>,
    /// Name in the controller's certificate, if not the URL's host.
    pub server_name: Option<String>,
    /// Plaintext, to loopback only.
    pub insecure_local: bool,
}

/// How the kernel log is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLog {
    /// From where.
    pub source: Source,
    /// Where to begin if no position of this boot is saved.
    pub start: Start,
    /// Believe records that user processes wrote too: demos and tests.
    pub accept_user_records: bool,
    /// With no saved position at all, older records are only stored.
    pub first_start_lookback: SignedDuration,
}

/// Where kernel log records come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `/dev/kmsg`.
    Kmsg,
    /// A FIFO that carries records in the form of `/dev/kmsg`.
    Pipe(PathBuf),
    /// Not read.
    Off,
}

/// Where to begin reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The whole ring; without any saved position, with the look-back.
    Auto,
    /// What comes from now on.
    End,
    /// The record with this sequence number.
    Sequence(u64),
}

/// A value from the command line or the environment; it stands above the file's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its key in the file.
    pub key: &'static str,
    /// What a person gave: the flag or the variable.
    pub name: &'static str,
    /// The value.
    pub value: String,
}

/// One thing wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key, cut; of a value that is not the file's, the flag or variable.
    pub key: String,
    /// What was given, cut; none if the key is missing.
    pub value: Option<String>,
    /// What would be accepted.
    pub allowed: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} = {value:?}; allowed: {}", self.key, self.allowed),
            None => write!(f, "{} is missing; allowed: {}", self.key, self.allowed),
        }
    }
}

/// Faults that an error's text names at most.
const MOST_SHOWN: usize = 50;
/// Characters of a key or value that an error's text shows at most.
const MOST_CHARS: usize = 100;
/// Bytes of a configuration file at most.
const MOST_BYTES: u64 = 1024 * 1024;

/// Reads a configuration file.
///
/// # Errors
/// If it can't be read, is no text or larger than 1 MiB.
pub fn read(path: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    let mut file = std::fs::File::open(path)?.take(MOST_BYTES + 1);
    if file.read_to_string(&mut text)? as u64 > MOST_BYTES {
        let why = "it is larger than 1 MiB, which no configuration is";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// All that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(pub Vec<Fault>);

impl ConfigError {
    /// Static name.
    pub fn code(&self) -> &'static str {
        "bad_config"
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = counted(self.0.len() as u64, "fault");
        write!(f, "the configuration has {count}:")?;
        let shown = self.0.iter().take(MOST_SHOWN);
        shown
            .clone()
            .try_for_each(|fault| write!(f, "\n  {fault}"))?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// What was given, before it is known to be whole.
#[derive(Debug, Clone)]
struct Draft {
    node: Option<NodeName>,
    /// Whether a name was given, be it a bad one.
    named: bool,
    config: Config,
    url: Option<Uri>,
    /// Where the URL was given: key or flag.
    url_name: String,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    server_name: Option<String>,
    insecure_local: bool,
}

/// Every key with its allowed form; the order is that of the reference page.
pub const KEYS: [(&str, &str); 19] = [
    ("node_name", "a DNS subdomain: the node's name"),
    ("state_dir", "an absolute path"),
    ("boot_id_file", "an absolute path"),
    ("machine_id", "a text of 1 to 128 characters"),
    ("controller.url", "https://HOST:PORT"),
    ("controller.token_file", "an absolute path"),
    ("controller.ca_file", "an absolute path"),
    ("controller.server_name", "a DNS name"),
    ("controller.insecure_local", "true or false"),
    ("kernel_log.source", "kmsg, pipe:/PATH or off"),
    ("kernel_log.start", "auto, end or a sequence number"),
    ("kernel_log.accept_user_records", "true or false"),
    (
        "kernel_log.first_start_lookback_seconds",
        "whole seconds, 0 to 31536000",
    ),
    (
        "socket.path",
        "an absolute path of at most 107 bytes, or off",
    ),
    ("socket.uids", "user ids, parted by commas; empty = all"),
    ("spool.max_bytes", "bytes, 1048576 to 1099511627776"),
    ("admin.listen", "ADDRESS:PORT, or off"),
    ("log.format", "auto, json or pretty"),
    ("log.filter", "a level, or TARGET=LEVEL parted by commas"),
];

impl Draft {
    fn new() -> Self {
        let config = Config {
            node: NodeName::new("unset").expect("a constant DNS label"),
            state_dir: PathBuf::from("/var/lib/warden-agent"),
            socket: Some(PathBuf::from(DEFAULT_SOCKET)),
            socket_uids: Vec::new(),
            boot_id_file: PathBuf::from(BOOT_ID_FILE),
            machine_id: None,
            controller: None,
            kernel_log: KernelLog {
                source: Source::Kmsg,
                start: Start::Auto,
                accept_user_records: false,
                first_start_lookback: DEFAULT_LOOKBACK,
            },
            spool_bytes: DEFAULT_SPOOL_BYTES,
            admin: None,
        };
        Self {
            node: None,
            named: false,
            config,
            url: None,
            url_name: String::new(),
            token_file: None,
            ca_file: None,
            server_name: None,
            insecure_local: false,
        }
    }

    /// Takes one value over; nothing if it is not in the allowed form.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "node_name" => self.node = Some(NodeName::new(value).ok()?),
            "state_dir" => self.config.state_dir = absolute(value)?,
            "boot_id_file" => self.config.boot_id_file = absolute(value)?,
            "machine_id" => self.config.machine_id = Some(text(value, 128)?),
            "controller.url" => self.url = Some(url(value)?),
            "controller.token_file" => self.token_file = Some(absolute(value)?),
            "controller.ca_file" => self.ca_file = Some(absolute(value)?),
            "controller.server_name" => self.server_name = Some(text(value, 253)?),
            "controller.insecure_local" => self.insecure_local = value.parse().ok()?,
            "kernel_log.source" => self.config.kernel_log.source = source(value)?,
            "kernel_log.start" => self.config.kernel_log.start = start(value)?,
            "kernel_log.accept_user_records" => {
                self.config.kernel_log.accept_user_records = value.parse().ok()?;
            }
            "kernel_log.first_start_lookback_seconds" => {
                let seconds = between(value, 0, 31_536_000)?;
                self.config.kernel_log.first_start_lookback =
                    SignedDuration::from_secs(i64::try_from(seconds).ok()?);
            }
            "socket.path" if value == "off" => self.config.socket = None,
            "socket.path" => self.config.socket = Some(socket_path(value)?),
            "socket.uids" => self.config.socket_uids = uids(value)?,
            "spool.max_bytes" => self.config.spool_bytes = between(value, 1 << 20, 1 << 40)?,
            "admin.listen" if value == "off" => self.config.admin = None,
            "admin.listen" => self.config.admin = Some(value.parse().ok()?),
            "log.format" => drop(value.parse::<telemetry::logging::LogFormat>().ok()?),
            "log.filter" => telemetry::logging::check_filter(value).ok()?,
            _ => return None,
        }
        Some(())
    }

    /// Puts the parts together and tells what is missing or does not fit.
    fn finish(self, faults: &mut Vec<Fault>) -> Config {
        let mut config = self.config;
        match self.node {
            Some(node) => config.node = node,
            None if self.named => {}
            None => faults.push(Fault {
                key: "node_name (--node-name, NODE_NAME)".into(),
                value: None,
                allowed: "a DNS subdomain: the node's name".into(),
            }),
        }
        let Some(url) = self.url else { return config };
        if let Some(allowed) = refused_url(&url, self.insecure_local) {
            faults.push(Fault {
                key: self.url_name,
                value: Some(shown(&url.to_string())),
                allowed: allowed.into(),
            });
        }
        config.controller = Some(Controller {
            url,
            token_file: self.token_file,
            ca_file: self.ca_file,
            server_name: self.server_name,
            insecure_local: self.insecure_local,
        });
        config
    }
}

/// Reads the file's text (empty = no file) and puts what else was given over it.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong in both.
pub fn load(file: &str, given: &[Given]) -> Result<Config, ConfigError> {
    let mut faults = Vec::new();
    let mut draft = Draft::new();
    let mut values = Vec::new();
    match file.parse::<toml::Table>() {
        Ok(table) => flatten("", &table, &mut values),
        Err(error) => faults.extend(unread(file, &error)),
    }
    let values = values
        .into_iter()
        .map(|(key, value)| (key.clone(), key, value));
    let given = given
        .iter()
        .map(|g| (g.key.to_owned(), g.name.to_owned(), g.value.clone()));
    for (key, name, value) in values.chain(given) {
        match key.as_str() {
            "node_name" => draft.named = true,
            "controller.url" => draft.url_name.clone_from(&name),
            _ => {}
        }
        let allowed = KEYS.iter().find(|(k, _)| *k == key).map(|(_, form)| *form);
        if allowed.is_some() && draft.set(&key, &value).is_some() {
            continue;
        }
        let known = || {
            let keys: Vec<&str> = KEYS.iter().map(|(k, _)| *k).collect();
            format!("one of the keys {}", keys.join(", "))
        };
        faults.push(Fault {
            key: named(&cut(&name)).into_owned(),
            value: Some(shown(&value)),
            allowed: allowed.map_or_else(known, str::to_owned),
        });
    }
    let config = draft.finish(&mut faults);
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(ConfigError(faults))
    }
}

/// Why a file can't be read, as whatever it says is left out: never nothing.
fn unread(file: &str, error: &toml::de::Error) -> Vec<Fault> {
    let syntax = syntax_faults(file);
    if !syntax.is_empty() {
        return syntax;
    }
    // TOML by its form, with a number that no integer of ours holds.
    let (table, _) = toml::de::DeTable::parse_recoverable(file);
    let mut faults = Vec::new();
    for (name, value) in table.get_ref() {
        overflows(file, name.get_ref(), value, &mut faults);
    }
    if faults.is_empty() {
        faults.push(Fault {
            key: "the file".to_owned(),
            value: None,
            allowed: format!("a TOML document; here: {}", shown(error.message())),
        });
    }
    faults
}

/// Every integer under a key that does not fit into 64 bits.
fn overflows(
    file: &str,
    key: &str,
    value: &toml::Spanned<toml::de::DeValue<'_>>,
    faults: &mut Vec<Fault>,
) {
    use toml::de::DeValue;
    match value.get_ref() {
        DeValue::Table(table) => {
            for (name, value) in table {
                overflows(file, &format!("{key}.{}", name.get_ref()), value, faults);
            }
        }
        DeValue::Array(items) => {
            for item in items {
                overflows(file, key, item, faults);
            }
        }
        DeValue::Integer(number) => {
            if i64::from_str_radix(number.as_str(), number.radix()).is_err() {
                let form = KEYS.iter().find(|(known, _)| *known == key);
                let form = form.map_or("an integer of 64 bits", |(_, form)| form);
                let line = file[..value.span().start].matches('\n').count() + 1;
                faults.push(Fault {
                    key: format!("{} (line {line} of the file)", named(&cut(key))),
                    value: file.get(value.span()).map(shown),
                    allowed: form.to_owned(),
                });
            }
        }
        DeValue::String(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {}
    }
}

/// Every line where a file stops being TOML, keys that stand twice included. What follows on a line is
/// mostly a consequence.
fn syntax_faults(file: &str) -> Vec<Fault> {
    let (_, mut errors) = toml::de::DeTable::parse_recoverable(file);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    // Each costs a walk through the text.
    errors.truncate(2 * MOST_SHOWN);
    let mut lines = std::collections::BTreeSet::new();
    let fault = |error: &toml::de::Error| {
        let start = error
            .span()
            .map_or(0, |span| file.floor_char_boundary(span.start));
        let before = &file[..start];
        let line = before.matches('\n').count() + 1;
        if !lines.insert(line) {
            return None;
        }
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Some(Fault {
            key: format!("line {line}, column {column} of the file"),
            value: file[start..].lines().next().map(shown),
            allowed: format!("a TOML document; here: {}", shown(error.message())),
        })
    };
    errors.iter().filter_map(fault).collect()
}

/// The value of one key of a file that [`load`] accepted: for what is needed before it (log
/// format, log filter).
pub fn value_of(file: &str, key: &str) -> Option<String> {
    let table = file.parse::<toml::Table>().ok()?;
    let mut values = Vec::new();
    flatten("", &table, &mut values);
    values.into_iter().find(|(k, _)| k == key).map(|(_, v)| v)
}

fn flatten(prefix: &str, table: &toml::Table, values: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        if let toml::Value::Table(inner) = value {
            flatten(&key, inner, values);
            continue;
        }
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Array(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                items.join(",")
            }
            toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Table(_) => value.to_string(),
        };
        values.push((key, text));
    }
}

/// What was given, cut, and without what would steer the terminal that it is shown on.
fn shown(text: &str) -> String {
    harmless(&cut(text)).into_owned()
}

fn cut(text: &str) -> String {
    let mut chars = text.chars();
    let mut cut: String = chars.by_ref().take(MOST_CHARS).collect();
    if chars.next().is_some() {
        cut.push('…');
    }
    cut
}

fn text(value: &str, most: usize) -> Option<String> {
    let good =
        !value.is_empty() && value.len() <= most && value.bytes().all(|b| b.is_ascii_graphic());
    good.then(|| value.to_owned())
}

fn absolute(value: &str) -> Option<PathBuf> {
    value.starts_with('/').then(|| PathBuf::from(value))
}

fn between(value: &str, least: u64, most: u64) -> Option<u64> {
    value.parse().ok().filter(|n| (least..=most).contains(n))
}

fn url(value: &str) -> Option<Uri> {
    let url: Uri = value.parse().ok()?;
    let scheme = matches!(url.scheme_str(), Some("http" | "https"));
    (scheme && url.host().is_some() && url.path() == "/").then_some(url)
}

/// Why this URL is not to be used; plaintext goes over loopback only, and only when asked for.
fn refused_url(url: &Uri, insecure_local: bool) -> Option<&'static str> {
    if url.scheme_str() == Some("https") {
        return None;
    }
    if !insecure_local {
        return Some("https://HOST:PORT; http:// only with --insecure-local to a loopback address");
    }
    let host = url.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    (!loopback).then_some("a loopback address (127.0.0.1, [::1], localhost) with --insecure-local")
}

fn source(value: &str) -> Option<Source> {
    match value {
        "kmsg" => Some(Source::Kmsg),
        "off" => Some(Source::Off),
        _ => absolute(value.strip_prefix("pipe:")?).map(Source::Pipe),
    }
}

fn start(value: &str) -> Option<Start> {
    match value {
        "auto" => Some(Start::Auto),
        "end" => Some(Start::End),
        _ => value.parse().ok().map(Start::Sequence),
    }
}

fn socket_path(value: &str) -> Option<PathBuf> {
    // The kernel's bound of a unix socket's path (sun_path), less the closing zero.
    absolute(value).filter(|p| p.as_os_str().len() <= 107)
}

fn uids(value: &str) -> Option<Vec<u32>> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
