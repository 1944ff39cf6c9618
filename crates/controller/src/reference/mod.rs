//! The reference's own configuration files, told in Warden's keys: for `--check-config`.
//!
//! # Guarantees
//! - Every key of a file is told of: taken as it is, taken otherwise, or left, with why.
//! - What is printed means the same as far as Warden can do it; where the reference's default is
//!   another one than Warden's, the key is written out.
//! - What can't be used is not printed: the result is checked like any other configuration.
//!
//! # Caveats
//! - A key says nothing about the flags of the reference's programs (`--dry-run`, …).
//! - YAML is not read: `yq -o json` makes JSON of it, which is.

mod connectors;
mod drainer;
mod janitor;
mod quarantine;
mod remediation;

#[cfg(test)]
mod tests;

use toml::{Table, Value};

use crate::checked::checked;
use crate::config::Problem;

/// Longest value that is repeated, in characters.
const SHOWN: usize = 80;
/// Warden's own top-level keys: a file with one of them is no file of the reference.
const OURS: [&str; 14] = [
    "profile",
    "log",
    "kubernetes",
    "lease",
    "store",
    "dedup",
    "ingest",
    "reports",
    "connector",
    "quarantine",
    "drain",
    "remediation",
    "janitor",
    "api",
];

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    FaultQuarantine,
    NodeDrainer,
    FaultRemediation,
    Janitor,
    PlatformConnectors,
    Overrides,
    Metadata,
    Dedup,
}

impl Kind {
    /// With the top-level keys that tell.
    const ALL: [(Self, &'static [&'static str]); 8] = [
        (
            Self::FaultQuarantine,
            &["rule-sets", "label-prefix", "circuitBreaker"],
        ),
        (
            Self::NodeDrainer,
            &[
                "evictionTimeoutInSeconds",
                "userNamespaces",
                "systemNamespaces",
                "deleteAfterTimeoutMinutes",
                "notReadyTimeoutMinutes",
                "drainGPUPods",
                "partialDrainEnabled",
                "customDrain",
            ],
        ),
        (
            Self::FaultRemediation,
            &["remediationActions", "updateRetry", "template", "templates"],
        ),
        (
            Self::Janitor,
            &[
                "rebootNodeController",
                "terminateNodeController",
                "gpuResetController",
                "global",
            ],
        ),
        (
            Self::PlatformConnectors,
            &[
                "enableK8sPlatformConnector",
                "MaxNodeConditionMessageLength",
                "CompactedHealthEventMsgLen",
                "pipeline",
                "K8sConnectorQps",
            ],
        ),
        (Self::Overrides, &["rules"]),
        (Self::Metadata, &["cacheSize", "cacheTTL", "allowedLabels"]),
        (
            Self::Dedup,
            &["suppressionWindow", "includeChecks", "cleanupInterval"],
        ),
    ];

    fn of(table: &Table) -> Option<Self> {
        if OURS.iter().any(|key| table.contains_key(*key)) {
            return None;
        }
        let has = |keys: &[&str]| keys.iter().any(|key| table.contains_key(*key));
        let mut kinds = Self::ALL.iter();
        kinds.find(|(_, keys)| has(keys)).map(|(kind, _)| *kind)
    }

    /// Program and file, for people.
    fn name(self) -> &'static str {
        match self {
            Self::FaultQuarantine => "fault-quarantine's config.toml",
            Self::NodeDrainer => "node-drainer's config.toml",
            Self::FaultRemediation => "fault-remediation's config.toml",
            Self::Janitor => "janitor's configuration",
            Self::PlatformConnectors => "platform-connectors' config.json",
            Self::Overrides => "platform-connectors' overrides.toml",
            Self::Metadata => "platform-connectors' metadata.toml",
            Self::Dedup => "platform-connectors' dedup.toml",
        }
    }
}

/// A key that is not simply taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Key in the reference's file.
    pub key: String,
    /// Its value there, cut; empty if it is absent.
    pub value: String,
    /// What becomes of it, and why.
    pub why: String,
}

/// A file of the reference, in Warden's keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Translation {
    /// Whose file it is.
    pub file: String,
    /// Keys that are taken as they are.
    pub taken: Vec<String>,
    /// Keys that are said otherwise, or that are said although the file does not.
    pub changed: Vec<Told>,
    /// Keys that are left out.
    pub left: Vec<Told>,
    /// The same for Warden, as TOML.
    pub toml: String,
    /// What is wrong with that, in Warden's keys.
    pub problems: Vec<Problem>,
}

impl Translation {
    /// As `--check-config` prints it: `[reference]`.
    pub fn table(&self) -> Table {
        let told = |told: &Told| {
            let parts = [
                ("key", &told.key),
                ("value", &told.value),
                ("why", &told.why),
            ];
            let parts = parts.map(|(k, v)| (k.to_owned(), Value::from(v.as_str())));
            Value::Table(parts.into_iter().collect())
        };
        let list = |list: &[Told]| Value::Array(list.iter().map(told).collect());
        let taken = self.taken.iter().map(|key| Value::from(key.as_str()));
        let parts = [
            ("file", Value::from(self.file.as_str())),
            ("taken", Value::Array(taken.collect())),
            ("changed", list(&self.changed)),
            ("left", list(&self.left)),
            ("toml", Value::from(self.toml.as_str())),
        ];
        let parts = parts.map(|(key, value)| (key.to_owned(), value));
        let whole: Table = parts.into_iter().collect();
        Table::from_iter([("reference".to_owned(), Value::Table(whole))])
    }
}

/// A file of the reference; none if it is not one.
pub fn translate(text: &str) -> Option<Translation> {
    let Some(mut table) = read(text) else {
        return yaml(text);
    };
    let kind = Kind::of(&table)?;
    let mut reading = Reading::default();
    match kind {
        Kind::FaultQuarantine => quarantine::read(&mut reading, &mut table),
        Kind::NodeDrainer => drainer::read(&mut reading, &mut table),
        Kind::FaultRemediation => remediation::read(&mut reading, &mut table),
        Kind::Janitor => janitor::read(&mut reading, &mut table),
        Kind::PlatformConnectors => connectors::read(&mut reading, &mut table),
        Kind::Overrides => connectors::overrides(&mut reading, &mut table),
        Kind::Metadata => connectors::metadata(&mut reading, &mut table),
        Kind::Dedup => connectors::dedup(&mut reading, &mut table),
    }
    reading.unknown("", &table);
    if kind == Kind::FaultRemediation {
        remediation::without_what_is_refused(&mut reading);
    }
    Some(reading.done(kind))
}

/// TOML, or JSON.
fn read(text: &str) -> Option<Table> {
    if text.trim_start().starts_with('{') {
        let mut json: serde_json::Value = serde_json::from_str(text).ok()?;
        without_null(&mut json);
        return Table::try_from(json).ok();
    }
    text.parse().ok()
}

/// TOML has no null; an absent key means the same.
fn without_null(json: &mut serde_json::Value) {
    if let Some(object) = json.as_object_mut() {
        object.retain(|_, value| !value.is_null());
        object.values_mut().for_each(without_null);
    } else if let Some(list) = json.as_array_mut() {
        list.retain(|value| !value.is_null());
        list.iter_mut().for_each(without_null);
    }
}

/// What looks like a YAML file of the reference: it is named, and not read.
fn yaml(text: &str) -> Option<Translation> {
    let has = |key: &str| {
        text.lines().any(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })
    };
    let janitors = [
        "rebootNodeController",
        "terminateNodeController",
        "gpuResetController",
    ];
    let (file, allowed) = if janitors.iter().any(|key| has(key)) {
        (
            Kind::Janitor.name(),
            "JSON with the same keys: `yq -o json FILE > janitor.json`; YAML is not read",
        )
    } else if has("apiVersion") && has("kind") {
        (
            "a Kubernetes object",
            "the file that is in it: `kubectl get configmap NAME -o jsonpath='{.data.config\\.toml}'`",
        )
    } else {
        return None;
    };
    Some(Translation {
        file: file.to_owned(),
        problems: vec![Problem {
            key: String::new(),
            value: "YAML".to_owned(),
            allowed: allowed.to_owned(),
        }],
        ..Translation::default()
    })
}

/// What is known while a file is read.
#[derive(Debug, Default)]
struct Reading {
    ours: Table,
    taken: Vec<String>,
    changed: Vec<Told>,
    left: Vec<Told>,
}

impl Reading {
    /// Writes a key of Warden's.
    fn put(&mut self, path: &[&str], value: impl Into<Value>) {
        let Some((last, tables)) = path.split_last() else {
            return;
        };
        let mut at = &mut self.ours;
        for part in tables {
            let inner = at
                .entry((*part).to_owned())
                .or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = inner else { return };
            at = inner;
        }
        at.insert((*last).to_owned(), value.into());
    }

    /// A key that is taken as it is, if the file has it. Answers whether it has.
    fn take(&mut self, table: &mut Table, (within, key): (&str, &str), to: &[&str]) -> bool {
        let Some(value) = table.remove(key) else {
            return false;
        };
        self.taken.push(joined(within, key));
        self.put(to, value);
        true
    }

    /// The same; where the file does not have it, the reference's default is written out.
    fn take_or(
        &mut self,
        table: &mut Table,
        of: (&str, &str),
        to: &[&str],
        (default, why): (Value, &str),
    ) {
        if !self.take(table, of, to) {
            self.put(to, default);
            self.changed.push(Told {
                key: joined(of.0, of.1),
                value: String::new(),
                why: why.to_owned(),
            });
        }
    }

    /// A key that is left out, if the file has it.
    fn leave(&mut self, table: &mut Table, (within, key): (&str, &str), why: &str) {
        if let Some(value) = table.remove(key) {
            self.left(joined(within, key), &value, why);
        }
    }

    fn left(&mut self, key: String, value: &Value, why: &str) {
        self.left.push(Told {
            key,
            value: shown(value),
            why: why.to_owned(),
        });
    }

    fn changed(&mut self, key: impl Into<String>, value: &Value, why: &str) {
        self.changed.push(Told {
            key: key.into(),
            value: shown(value),
            why: why.to_owned(),
        });
    }

    /// What nothing is known of.
    fn unknown(&mut self, within: &str, table: &Table) {
        for (key, value) in table {
            self.left(
                joined(within, key),
                value,
                "the reference has no such key here, or not of this form",
            );
        }
    }

    fn toml(&self) -> String {
        toml::to_string(&self.ours).unwrap_or_default()
    }

    fn done(mut self, kind: Kind) -> Translation {
        let toml = self.toml();
        let problems = match checked(&toml) {
            Ok(checked) => checked.problems,
            Err(error) => vec![Problem {
                key: String::new(),
                value: String::new(),
                allowed: error.to_string(),
            }],
        };
        self.taken.sort();
        Translation {
            file: format!("NVSentinel's {}", kind.name()),
            taken: self.taken,
            changed: self.changed,
            left: self.left,
            toml,
            problems,
        }
    }
}

fn joined(within: &str, key: &str) -> String {
    if within.is_empty() {
        key.to_owned()
    } else {
        format!("{within}.{key}")
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    text.chars().take(SHOWN).chain("…".chars()).collect()
}

/// A table inside, taken out of its place; none where there is none.
fn inner(table: &mut Table, key: &str) -> Option<Table> {
    match table.remove(key)? {
        Value::Table(inner) => Some(inner),
        other @ (Value::String(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)) => {
            table.insert(key.to_owned(), other);
            None
        }
    }
}
