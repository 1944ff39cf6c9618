//! Reading a TOML table key by key, so that everything wrong is found at once and every key says
//! what it is.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use health_event::text::named;
use toml::{Table, Value};

use super::alike;

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Full key, for example `ingest.mode`.
    pub key: String,
    /// The value as it stands there.
    pub value: String,
    /// What would be allowed.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            value,
            allowed,
        } = self;
        write!(f, "{key} = {value}: allowed is {allowed}")
    }
}

/// One key that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Full key.
    pub key: String,
    /// The value in effect, as TOML.
    pub value: String,
    /// The default, as TOML.
    pub default: String,
    /// What is allowed.
    pub allowed: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// What reading found out.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: RefCell<Vec<Problem>>,
    pub(super) keys: RefCell<Vec<Key>>,
    /// Full keys whose value is bad: it has its default, of which the file says nothing.
    bad: RefCell<BTreeSet<String>>,
    /// Arrays of tables with the keys of an element, whether any is there or not.
    pub(super) shapes: RefCell<Vec<Key>>,
    /// Every key that was asked for, so that a test finds what no page would name.
    #[cfg(test)]
    pub(super) asked: RefCell<Vec<String>>,
}

/// One table of the file. Keys that nobody asked for are reported when it is dropped.
#[derive(Debug)]
pub(super) struct Section<'a> {
    path: String,
    table: Table,
    known: Vec<&'static str>,
    findings: &'a Findings,
    /// It stands for an element of an array of tables, and is only read for its keys.
    is_shape: bool,
}

/// Spans as they are written, of which a message names those that would be right.
const SPANS: [&str; 5] = ["90s", "5m", "12h", "14d", "500ms"];
/// Longest text of a value in a message.
const SHOWN: usize = 80;

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    text.chars().take(SHOWN).chain("…".chars()).collect()
}

impl<'a> Section<'a> {
    pub(super) fn root(table: Table, findings: &'a Findings) -> Self {
        Self {
            path: String::new(),
            table,
            known: Vec::new(),
            findings,
            is_shape: false,
        }
    }

    fn below(&self, path: String, table: Table) -> Self {
        Self {
            path,
            table,
            known: Vec::new(),
            findings: self.findings,
            is_shape: self.is_shape,
        }
    }

    /// The full name of a key of this table.
    pub(super) fn full(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Tells of a value, unless that key was told to be bad: what follows from that is not in the file.
    pub(super) fn problem(&self, key: &str, value: &Value, allowed: impl Into<String>) {
        if self.is_shape || self.is_bad(key) {
            return;
        }
        self.findings.problems.borrow_mut().push(Problem {
            key: named(&self.full(key)).into_owned(),
            value: shown(value),
            allowed: allowed.into(),
        });
    }

    /// Tells of a value that can't be read.
    fn bad(&self, key: &str, value: &Value, allowed: impl Into<String>) {
        self.problem(key, value, allowed);
        self.findings.bad.borrow_mut().insert(self.full(key));
    }

    /// Whether the value of a key could not be read, so that its default stands for it.
    pub(super) fn is_bad(&self, key: &str) -> bool {
        self.findings.bad.borrow().contains(&self.full(key))
    }

    /// Whether a list or a table is not there, or holds nothing.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        match self.table.get(key) {
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Table(items)) => items.is_empty(),
            other => other.is_none(),
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    /// A table inside this one; an empty one if it isn't there.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'a> {
        let table = match self.take(key) {
            Some(Value::Table(table)) => table,
            None => Table::new(),
            Some(other) => {
                self.bad(key, &other, format!("a table: [{}]", self.full(key)));
                Table::new()
            }
        };
        self.below(self.full(key), table)
    }

    /// The elements of an array of tables, each read by `read`; none if it isn't there. `default`
    /// says in words what holds then.
    pub(super) fn sections<T>(
        &mut self,
        (key, default, help): (&'static str, &'static str, &'static str),
        read: impl Fn(Section<'a>) -> T,
    ) -> Vec<T> {
        let full = self.full(key);
        self.findings.shapes.borrow_mut().push(Key {
            key: full.clone(),
            value: String::new(),
            default: default.to_owned(),
            allowed: "an array of tables",
            help,
        });
        let mut shape = self.below(format!("{full}[]"), Table::new());
        shape.is_shape = true;
        read(shape);
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let allowed = format!("an array of tables: [[{full}]]");
        let Value::Array(items) = value else {
            self.bad(key, &value, allowed);
            return Vec::new();
        };
        let mut elements = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            match item {
                Value::Table(table) => {
                    elements.push(read(self.below(format!("{full}[{index}]"), table)));
                }
                Value::String(_)
                | Value::Integer(_)
                | Value::Float(_)
                | Value::Boolean(_)
                | Value::Datetime(_)
                | Value::Array(_) => self.problem(key, &item, allowed.as_str()),
            }
        }
        elements
    }

    /// The tables inside a table, by their names in order, each read by `read`; none if the table isn't
    /// there. `default` says in words what holds then.
    pub(super) fn tables<T>(
        &mut self,
        (key, default, help): (&'static str, &'static str, &'static str),
        read: impl Fn(Section<'a>) -> T,
    ) -> Option<Vec<(String, T)>> {
        let full = self.full(key);
        self.findings.shapes.borrow_mut().push(Key {
            key: full.clone(),
            value: String::new(),
            default: default.to_owned(),
            allowed: "tables, each under its NAME",
            help,
        });
        let mut shape = self.below(format!("{full}.NAME"), Table::new());
        shape.is_shape = true;
        read(shape);
        let value = self.take(key)?;
        let allowed = format!("tables: [{full}.NAME]");
        let Value::Table(items) = value else {
            self.bad(key, &value, allowed);
            return None;
        };
        let mut tables = Vec::new();
        for (name, item) in items {
            if let Value::Table(table) = item {
                let section = self.below(format!("{full}.{name}"), table);
                tables.push((name, read(section)));
            } else {
                self.problem(key, &item, allowed.as_str());
            }
        }
        Some(tables)
    }

    /// A value that `parse` understands; the default where it is missing or, reported, bad.
    pub(super) fn value<T>(
        &mut self,
        of: (&'static str, Value, &'static str),
        allowed: &'static str,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> T {
        self.value_or(of, allowed, |_| allowed.to_owned(), parse)
    }

    /// The same, where `better` says of a bad value what is allowed in place of it.
    fn value_or<T>(
        &mut self,
        (key, default, help): (&'static str, Value, &'static str),
        allowed: &'static str,
        better: impl Fn(&Value) -> String,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let given = self.take(key);
        let effective = match &given {
            Some(value) => {
                let parsed = parse(value);
                if parsed.is_none() {
                    self.bad(key, value, better(value));
                }
                parsed.map(|parsed| (parsed, value))
            }
            None => None,
        };
        let (parsed, value) = effective.unwrap_or_else(|| {
            let parsed = parse(&default).expect("a default is of the allowed form");
            (parsed, &default)
        });
        let keys = if self.is_shape {
            &self.findings.shapes
        } else {
            &self.findings.keys
        };
        keys.borrow_mut().push(Key {
            key: self.full(key),
            value: value.to_string(),
            default: default.to_string(),
            allowed,
            help,
        });
        parsed
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool, help: &'static str) -> bool {
        self.value((key, default.into(), help), "true or false", Value::as_bool)
    }

    /// A whole number within bounds; `allowed` says which.
    pub(super) fn number(
        &mut self,
        (key, default, help): (&'static str, u32, &'static str),
        allowed: &'static str,
        bounds: std::ops::RangeInclusive<u32>,
    ) -> u32 {
        self.value((key, i64::from(default).into(), help), allowed, |value| {
            let number = u32::try_from(value.as_integer()?).ok()?;
            bounds.contains(&number).then_some(number)
        })
    }

    pub(super) fn text(&mut self, key: &'static str, default: &str, help: &'static str) -> String {
        self.value((key, default.into(), help), "a text", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    /// One of some names.
    pub(super) fn name<T>(
        &mut self,
        (key, default, help): (&'static str, &str, &'static str),
        allowed: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        self.value((key, default.into(), help), allowed, |value| {
            value.as_str().and_then(&parse)
        })
    }

    /// A file or folder; empty is none.
    pub(super) fn path(
        &mut self,
        key: &'static str,
        default: &str,
        help: &'static str,
    ) -> Option<PathBuf> {
        self.value(
            (key, default.into(), help),
            "a path, or \"\" for none",
            |value| {
                let text = value.as_str()?;
                Some((!text.is_empty()).then(|| PathBuf::from(text)))
            },
        )
    }

    /// Where to listen; empty is nowhere.
    pub(super) fn address(
        &mut self,
        key: &'static str,
        default: &str,
        help: &'static str,
    ) -> Option<SocketAddr> {
        let allowed = "ADDRESS:PORT, for example 0.0.0.0:9440 or [::]:9440, or \"\" for none";
        self.value((key, default.into(), help), allowed, |value| {
            let text = value.as_str()?;
            if text.is_empty() {
                return Some(None);
            }
            text.parse().ok().map(Some)
        })
    }

    /// A span within bounds; `allowed` says which.
    pub(super) fn span(
        &mut self,
        (key, default, help): (&'static str, &str, &'static str),
        allowed: &'static str,
        bounds: std::ops::RangeInclusive<Duration>,
    ) -> Duration {
        let better = |value: &Value| {
            if value.as_str().and_then(parse_span).is_some() {
                return allowed.to_owned();
            }
            let within = |text: &&&str| parse_span(text).is_some_and(|span| bounds.contains(&span));
            let examples = SPANS.iter().filter(within).take(2);
            let examples: Vec<String> = examples.map(|text| format!("\"{text}\"")).collect();
            format!(
                "{allowed}, in quotes and with units (ms, s, m, h, d), for example {}",
                examples.join(" or ")
            )
        };
        self.value_or((key, default.into(), help), allowed, better, |value| {
            let span = parse_span(value.as_str()?)?;
            bounds.contains(&span).then_some(span)
        })
    }

    /// A number of bytes.
    pub(super) fn bytes(&mut self, key: &'static str, default: &str, help: &'static str) -> u64 {
        let allowed = "a number of bytes, or a text with KiB, MiB or GiB, for example \"64MiB\"";
        self.value((key, default.into(), help), allowed, |value| match value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => parse_bytes(text),
            Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_) => None,
        })
    }

    /// A list of texts that `parse` understands.
    pub(super) fn list<T>(
        &mut self,
        (key, default, help): (&'static str, &[&str], &'static str),
        allowed: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        self.texts((key, default, help), allowed, 0, parse)
    }

    /// Like [`Section::list`], where an empty list would switch a check off.
    pub(super) fn some<T>(
        &mut self,
        (key, default, help): (&'static str, &[&str], &'static str),
        allowed: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        self.texts((key, default, help), allowed, 1, parse)
    }

    fn texts<T>(
        &mut self,
        (key, default, help): (&'static str, &[&str], &'static str),
        allowed: &'static str,
        fewest: usize,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        let default: Vec<Value> = default.iter().map(|text| Value::from(*text)).collect();
        self.value((key, default.into(), help), allowed, |value| {
            let items = value.as_array().filter(|items| items.len() >= fewest)?;
            let items = items.iter();
            items.map(|item| item.as_str().and_then(&parse)).collect()
        })
    }
}

/// A text that says something.
pub(super) fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let mut known = self.known.clone();
        known.sort_unstable();
        known.dedup();
        #[cfg(test)]
        {
            let asked = known.iter().map(|key| self.full(key));
            self.findings.asked.borrow_mut().extend(asked);
        }
        for (key, value) in std::mem::take(&mut self.table) {
            let meant = alike::meant(&key, known.iter().copied());
            let allowed = format!("no such key{meant}; keys here are {}", known.join(", "));
            self.problem(&key, &value, allowed);
        }
    }
}

/// `1h30m`, `500ms`, `14d`: numbers with units ms, s, m, h, d.
pub(super) fn parse_span(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let milliseconds = match &rest[..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(milliseconds)?))?;
        rest = &rest[unit..];
    }
    Some(total)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match text[digits..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_bytes() {
        let table = [
            ("5m", Some(300)),
            ("1h30m", Some(5_400)),
            ("14d", Some(1_209_600)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("m", None),
            ("-5m", None),
            ("5 m", None),
            ("99999999999999999999d", None),
            ("9999999999999999999d", None),
        ];
        for (text, want) in table {
            assert_eq!(parse_span(text).map(|d| d.as_secs()), want, "{text}");
        }
        let table = [
            ("64MiB", Some(64 << 20)),
            ("2GiB", Some(2 << 30)),
            ("17", Some(17)),
            ("1 KiB", Some(1024)),
            ("1MB", None),
            ("99999999999GiB", None),
            ("", None),
        ];
        for (text, want) in table {
            assert_eq!(parse_bytes(text), want, "{text}");
        }
    }
}
