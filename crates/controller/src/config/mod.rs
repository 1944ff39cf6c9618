//! The controller's configuration: one typed TOML file, defaults in code.
//!
//! # Guarantees
//! Unknown keys and bad values are all reported, each with key, value and allowed form, before
//! anything starts. Keys that exist in the reference keep name and meaning. No value is a secret:
//! secrets are named by the file that holds them, and only the name is printed.

mod acts;
mod alike;
mod drain;
mod ingest;
mod janitor;
mod labels;
mod numbers;
mod pairs;
mod quarantine;
mod reader;
mod remediation;
mod sections;
mod transformers;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use health_event::text::counted;

pub use drain::DrainConfig;
pub use ingest::{CheckRef, Identity, IngestConfig, ServiceAccount, TlsConfig, TrustMode};
pub use janitor::{JanitorConfig, ProviderConfig};
pub use quarantine::{
    BreakerConfig, Cooperator, CooperatorPolicy, PoolConfig, QuarantineConfig, RuleChange,
    RuleConfig, RuleKind, RuleSetConfig, TaintConfig,
};
pub use reader::{Key, Problem};
pub use remediation::RemediationConfig;
pub use sections::{
    ApiConfig, ConnectorConfig, DedupConfig, KubernetesConfig, LeaseConfig, LogConfig,
    ReportsConfig, StoreConfig,
};
pub use transformers::{MetadataConfig, OverridesConfig};

use reader::{Findings, Section};

/// How far the controller may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Profile {
    /// Stores, shows and exports; writes nothing to objects of others.
    Silent,
    /// Writes node conditions and Events, and decides without acting (dry run).
    #[default]
    Observe,
    /// Cordons and taints too.
    Cordon,
    /// Moves the work off nodes too.
    Drain,
    /// Orders and carries out repairs too.
    Remediate,
}

impl Profile {
    /// All, from weak to strong.
    pub const ALL: [Self; 5] = [
        Self::Silent,
        Self::Observe,
        Self::Cordon,
        Self::Drain,
        Self::Remediate,
    ];
    const ALLOWED: &'static str = "silent, observe, cordon, drain or remediate";

    /// The name in configuration and store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Observe => "observe",
            Self::Cordon => "cordon",
            Self::Drain => "drain",
            Self::Remediate => "remediate",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.as_str() == name)
    }
}

/// Everything that can be configured.
#[derive(Debug, Clone)]
pub struct Config {
    /// How far the controller may act.
    pub profile: Profile,
    /// `[log]`
    pub log: LogConfig,
    /// `[kubernetes]`
    pub kubernetes: KubernetesConfig,
    /// `[lease]`
    pub lease: LeaseConfig,
    /// `[store]`
    pub store: StoreConfig,
    /// `[dedup]`
    pub dedup: DedupConfig,
    /// `[ingest]`
    pub ingest: IngestConfig,
    /// `[reports]`
    pub reports: ReportsConfig,
    /// `[connector]`
    pub connector: ConnectorConfig,
    /// `[quarantine]`
    pub quarantine: QuarantineConfig,
    /// `[drain]`
    pub drain: DrainConfig,
    /// `[remediation]`
    pub remediation: RemediationConfig,
    /// `[janitor]`
    pub janitor: JanitorConfig,
    /// `[api]`
    pub api: ApiConfig,
    keys: Vec<Key>,
    shapes: Vec<Key>,
}

/// Bytes of a configuration at most: 100 times the largest of a real cluster.
pub const LARGEST: usize = 1024 * 1024;

/// Why a configuration can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// It has more than [`LARGEST`] bytes.
    TooLarge,
    /// It is no TOML; where and why.
    Syntax(String),
    /// Everything wrong with it.
    Problems(Vec<Problem>),
}

impl ConfigError {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge => "config_too_large",
            Self::Syntax(_) => "config_syntax",
            Self::Problems(_) => "config",
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(
                f,
                "the configuration has more than {LARGEST} bytes, the most that is read; fewer or \
                 shorter rule sets make it smaller"
            ),
            Self::Syntax(why) => write!(f, "the configuration is no TOML: {}", why.trim_end()),
            Self::Problems(problems) => {
                let count = counted(problems.len() as u64, "fault");
                write!(f, "the configuration has {count}:")?;
                problems.iter().try_for_each(|p| write!(f, "\n  {p}"))
            }
        }
    }
}

/// A configuration's text. Of a file that is too large one byte more than [`LARGEST`] is read, so that
/// [`Config::parse_all`] refuses it.
///
/// # Errors
/// The file can't be read, or holds no UTF-8 text.
pub fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let most = LARGEST as u64 + 1;
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    if bytes.len() > LARGEST {
        // A character that is cut in two does not matter any more.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The same of the file of a process that runs, which may have become anything: what is no regular file is not
/// waited for.
///
/// # Errors
/// As [`read`], or it is no regular file.
pub fn read_again(path: &Path) -> io::Result<String> {
    // Opened, a pipe would be waited for.
    if !std::fs::metadata(path)?.is_file() {
        let why = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    read(path)
}

impl Config {
    /// Reads a file's text; an empty one is all defaults.
    ///
    /// # Errors
    /// [`ConfigError`] with every key and value that is wrong.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let (config, problems) = Self::parse_all(text)?;
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Problems(problems))
        }
    }

    /// Reads a file's text as far as it can be read, with every key and value that is wrong; what
    /// is wrong has its default, so that the rest can be checked too.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`], [`ConfigError::Syntax`].
    pub fn parse_all(text: &str) -> Result<(Self, Vec<Problem>), ConfigError> {
        if text.len() > LARGEST {
            return Err(ConfigError::TooLarge);
        }
        let (table, too_large) = if let Ok(table) = text.parse::<toml::Table>() {
            (table, Vec::new())
        } else {
            let too_large = numbers::too_large(text);
            let table = numbers::bounded(text, &too_large).parse();
            let syntax = |error| ConfigError::Syntax(syntax_faults(text, &error));
            (table.map_err(syntax)?, too_large)
        };
        let findings = Findings::default();
        let mut config = Self::read(Section::root(table, &findings));
        config.keys = findings.keys.into_inner();
        config.shapes = findings.shapes.into_inner();
        let mut problems = findings.problems.into_inner();
        numbers::tell(&mut problems, &too_large);
        Ok((config, problems))
    }

    fn read(mut root: Section<'_>) -> Self {
        let profile = root.name(
            ("profile", "observe", "How far the controller may act"),
            Profile::ALLOWED,
            Profile::from_name,
        );
        Self {
            profile,
            log: LogConfig::read(root.section("log")),
            kubernetes: KubernetesConfig::read(root.section("kubernetes")),
            lease: LeaseConfig::read(root.section("lease")),
            store: StoreConfig::read(root.section("store")),
            dedup: DedupConfig::read(root.section("dedup")),
            ingest: IngestConfig::read(root.section("ingest")),
            reports: ReportsConfig::read(root.section("reports")),
            connector: ConnectorConfig::read(root.section("connector"), profile),
            quarantine: QuarantineConfig::read(root.section("quarantine"), profile),
            drain: DrainConfig::read(root.section("drain"), profile),
            remediation: RemediationConfig::read(root.section("remediation"), profile),
            janitor: JanitorConfig::read(root.section("janitor"), profile),
            api: ApiConfig::read(root.section("api")),
            keys: Vec::new(),
            shapes: Vec::new(),
        }
    }

    /// What contradicts itself in it: each value is right alone, and together they keep something from ever
    /// happening. With what would be better.
    pub fn contradictions(&self) -> Vec<Problem> {
        pairs::contradictions(self)
    }

    /// What Warden does on its own under this configuration, weak to strong, in one line.
    pub fn acts(&self) -> String {
        acts::acts(self)
    }

    /// Every key with its value in effect, default, allowed form and meaning, in the order of the
    /// reference page.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Every array of tables, `NAME`, with what holds where it is absent, and every key of an element,
    /// `NAME[].KEY`.
    pub fn shapes(&self) -> &[Key] {
        &self.shapes
    }

    /// The configuration in effect, one `key = value` a line. Secrets are not in it.
    pub fn effective(&self) -> String {
        let lines = self
            .keys
            .iter()
            .map(|k| format!("{} = {}\n", k.key, k.value));
        lines.collect()
    }
}

/// Lines of a text that is no TOML that are told.
const MOST_LINES: usize = 50;

/// Every line where a text stops being TOML, keys that stand twice included. What follows on a line is
/// mostly a consequence. `error` is told where no line is known.
fn syntax_faults(text: &str, error: &toml::de::Error) -> String {
    let (_, mut errors) = toml::de::DeTable::parse_recoverable(text);
    let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    errors.sort_by_key(start);
    // Each costs a walk through the text.
    errors.truncate(2 * MOST_LINES);
    errors.dedup_by_key(|error| {
        let before = text.floor_char_boundary(start(error));
        text[..before].matches('\n').count()
    });
    errors.truncate(MOST_LINES);
    if errors.is_empty() {
        return error.to_string();
    }
    errors.iter().map(ToString::to_string).collect()
}

impl Default for Config {
    fn default() -> Self {
        Self::parse("").expect("the defaults are a valid configuration")
    }
}

#[cfg(test)]
mod tests;
