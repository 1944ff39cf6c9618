//! `warden config check FILE`: everything that is wrong with a configuration, before it is used.
//!
//! The program that reads the file checks it: `warden-controller --check-config FILE` or
//! `warden-agent --check-config FILE`, found beside this program or in `PATH`. It prints a TOML
//! table a fault. So the check is exactly what a start would say, and this program needs neither.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::output::{self, BOLD, Exit, Format, GREEN, Options, RED, YELLOW};
use crate::output::{counted, harmless, json_line, unless_gone};

mod node_cache;
mod reference;
mod syntax;

/// Bytes of a configuration at most.
const LARGEST: u64 = 1024 * 1024;
/// Top-level keys that only one of the two knows.
const CONTROLLERS: [&str; 13] = [
    "dedup",
    "profile",
    "kubernetes",
    "lease",
    "store",
    "ingest",
    "reports",
    "connector",
    "quarantine",
    "drain",
    "remediation",
    "janitor",
    "api",
];
const AGENTS: [&str; 9] = [
    "node_name",
    "state_dir",
    "boot_id_file",
    "machine_id",
    "controller",
    "kernel_log",
    "socket",
    "spool",
    "admin",
];

const AFTER_HELP: &str = "\
The programs check their own files: warden-controller or warden-agent must lie beside \
`warden` or in PATH.

Exit codes: 0 nothing is wrong, though there may be warnings; 1 something is; 2 wrong usage, or the file could not be checked.";

/// What about it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    act: Act,
}

/// See [`Args`].
#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Report everything that is wrong with a file, each with key, value and allowed form; of a file
    /// of NVSentinel what becomes of each key, and the same for warden-controller.
    Check(Check),
}

/// Which file.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
struct Check {
    /// The configuration (TOML; NVSentinel's janitor and platform-connectors as JSON).
    file: PathBuf,
    /// Whose it is, controller or agent; default: told by its keys, and both where they don't tell.
    #[arg(long, value_enum, hide_possible_values = true)]
    program: Option<Program>,
}

/// Whose configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Program {
    /// warden-controller
    Controller,
    /// warden-agent
    Agent,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Controller => "warden-controller",
            Self::Agent => "warden-agent",
        }
    }
}

/// One thing wrong, as the programs print it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Fault {
    /// Full key; empty if the file as a whole is meant.
    key: String,
    /// The value, cut; none if the key is missing.
    value: Option<String>,
    /// What would be right.
    allowed: String,
}

/// All that a program prints.
#[derive(Debug, Deserialize)]
struct Printed {
    #[serde(default)]
    fault: Vec<Fault>,
    /// What is odd, and keeps nothing from starting.
    #[serde(default)]
    warning: Vec<Fault>,
    /// What the controller does on its own with this file, where nothing is wrong.
    acts: Option<String>,
    /// The controller's, where nothing is wrong.
    node_cache: Option<node_cache::NodeCache>,
    /// The controller's, where the file is one of the reference.
    reference: Option<reference::Reference>,
}

impl Fault {
    /// With the value as JSON, not as the TOML that the file holds in quotes once more.
    fn json(&self) -> serde_json::Value {
        let value = self.value.as_deref().map(|text| {
            let plain = || serde_json::Value::from(text);
            let value = as_toml(text).and_then(|value| serde_json::to_value(value).ok());
            value.unwrap_or_else(plain)
        });
        serde_json::json!({"key": self.key, "value": value, "allowed": self.allowed})
    }

    /// The value as it would stand in the file.
    fn shown(&self) -> Option<String> {
        let text = self.value.as_ref()?;
        let cut = text.ends_with('…');
        Some(if cut || is_toml(text) {
            text.clone()
        } else {
            format!("{text:?}")
        })
    }
}

/// Whether it stands in a file as it is, a number that can't be held included.
fn is_toml(text: &str) -> bool {
    toml::de::DeTable::parse(&format!("value = {text}"))
        .is_ok_and(|table| table.get_ref().len() == 1)
}

/// A value as TOML writes it: the controller tells it so, the agent tells a text without quotes.
fn as_toml(text: &str) -> Option<toml::Value> {
    let mut table: toml::Table = format!("value = {text}").parse().ok()?;
    table.remove("value")
}

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("configuration {}: {why}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Its keys contradict each other.
    #[error(
        "configuration {} has keys of both programs ({controllers} is the controller's, {agents} the \
         agent's): split it, or say whose it is with --program", path.display()
    )]
    Mixed {
        /// Its path.
        path: PathBuf,
        /// A key that only the controller has.
        controllers: &'static str,
        /// A key that only the agent has.
        agents: &'static str,
    },
    /// The program that knows.
    #[error(
        "{program} checks its own configuration, and {why}; put it beside `warden` or into PATH"
    )]
    Program {
        /// Which.
        program: &'static str,
        /// Why it didn't.
        why: String,
    },
    /// Standard output.
    #[error("can't write the result to standard output")]
    Output(#[from] io::Error),
}

impl ConfigError {
    /// Stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "config_file",
            Self::Mixed { .. } => "config_mixed",
            Self::Program { .. } => "config_program",
            Self::Output(_) => "output_unwritable",
        }
    }
}

/// Checks and prints.
///
/// # Errors
/// [`ConfigError`] if nothing could be checked; faults are the answer [`Exit::Unhealthy`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ConfigError> {
    let Act::Check(Check { file, program }) = &args.act;
    let text = read(file)?;
    let mut out = options.stdout();
    let (table, unreadable) = match text.parse::<toml::Table>() {
        Ok(table) => (table, None),
        Err(error) => (syntax::keys(&text), Some(error)),
    };
    if program.is_none() && reference::may_be(&text, &table) {
        let told = asked(Program::Controller, file)?;
        if let Some(theirs) = &told.reference {
            return of_the_reference(&mut out, file, theirs, &told.fault, options.format);
        }
    }
    let faults = unreadable
        .as_ref()
        .map_or_else(Vec::new, |_| syntax::faults(&text));
    if !faults.is_empty() {
        let printed = match options.format {
            Format::Json => json_line(&mut out, &syntax::json(&faults, file, *program)),
            Format::Text => syntax::print(&faults, &mut out, file),
        };
        unless_gone(printed.and_then(|()| out.flush()))?;
        return Ok(Exit::Unhealthy);
    }
    let mut exit = Exit::Clean;
    for (program, mut told) in checked(file, *program, &table)? {
        // A number that can't be held: the program knows its key and what is allowed there.
        if let Some(error) = unreadable.as_ref().filter(|_| told.fault.is_empty()) {
            told.fault.push(Fault {
                key: String::new(),
                value: Some(error.message().to_owned()),
                allowed: "numbers from -9223372036854775808 to 9223372036854775807".to_owned(),
            });
        }
        let printed = match options.format {
            Format::Json => {
                let mut result = serde_json::json!({
                    "file": file.to_string_lossy(),
                    "program": program.name(),
                    "faults": told.fault.iter().map(Fault::json).collect::<Vec<_>>(),
                    "warnings": told.warning.iter().map(Fault::json).collect::<Vec<_>>(),
                });
                if let Some(cost) = &told.node_cache {
                    result["node_cache"] = serde_json::json!(cost);
                }
                if let Some(acts) = &told.acts {
                    result["acts"] = serde_json::json!(acts);
                }
                json_line(&mut out, &result.to_string())
            }
            Format::Text => print(&mut out, file, program, &told, table.is_empty()),
        };
        unless_gone(printed.and_then(|()| out.flush()))?;
        if !told.fault.is_empty() {
            exit = Exit::Unhealthy;
        }
    }
    Ok(exit)
}

/// A file of the reference, told in Warden's keys.
fn of_the_reference(
    out: &mut impl io::Write,
    file: &Path,
    theirs: &reference::Reference,
    faults: &[Fault],
    format: Format,
) -> Result<Exit, ConfigError> {
    let printed = match format {
        Format::Json => {
            let result = serde_json::json!({
                "file": file.to_string_lossy(),
                "reference": theirs,
                "faults": faults.iter().map(Fault::json).collect::<Vec<_>>(),
            });
            json_line(out, &result.to_string())
        }
        Format::Text => theirs.print(out, file, faults.len()).and_then(|()| {
            let mut faults = faults.iter();
            faults.try_for_each(|fault| print_one(out, fault, "allowed"))
        }),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(if faults.is_empty() {
        Exit::Clean
    } else {
        Exit::Unhealthy
    })
}

/// What each program says whose file it may be. Keys that both have, or none, do not tell: then
/// both are asked, as far as they are here.
fn checked(
    file: &Path,
    program: Option<Program>,
    table: &toml::Table,
) -> Result<Vec<(Program, Printed)>, ConfigError> {
    if let Some(program) = program.map_or_else(|| told_by_keys(file, table), |p| Ok(Some(p)))? {
        return Ok(vec![(program, asked(program, file)?)]);
    }
    let mut said = Vec::new();
    let mut missing = Vec::new();
    for program in [Program::Controller, Program::Agent] {
        match asked(program, file) {
            Ok(told) => said.push((program, told)),
            Err(error) => missing.push(error),
        }
    }
    if said.is_empty()
        && let Some(error) = missing.pop()
    {
        return Err(error);
    }
    for error in missing {
        output::report_warning(&output::chain(&error));
    }
    Ok(said)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let error = |why: String| ConfigError::File {
        path: path.to_owned(),
        why,
    };
    let file = File::open(path).map_err(|e| error(e.to_string()))?;
    let mut bytes = Vec::new();
    let read = file.take(LARGEST + 1).read_to_end(&mut bytes);
    read.map_err(|e| error(e.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(error(format!(
            "it has more than {LARGEST} bytes, the most that is read"
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        error(format!("it is no UTF-8 text from byte {at} on; TOML is"))
    })
}

/// By the keys that only one of the two knows.
fn told_by_keys(file: &Path, table: &toml::Table) -> Result<Option<Program>, ConfigError> {
    let first = |keys: &[&'static str]| keys.iter().copied().find(|key| table.contains_key(*key));
    match (first(&CONTROLLERS), first(&AGENTS)) {
        (Some(_), None) => Ok(Some(Program::Controller)),
        (None, Some(_)) => Ok(Some(Program::Agent)),
        (None, None) => Ok(None),
        (Some(controllers), Some(agents)) => Err(ConfigError::Mixed {
            path: file.to_owned(),
            controllers,
            agents,
        }),
    }
}

fn asked(program: Program, file: &Path) -> Result<Printed, ConfigError> {
    let failed = |why: String| ConfigError::Program {
        program: program.name(),
        why,
    };
    let output = Command::new(found(program.name()))
        .arg("--check-config")
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("it can't be run: {error}")))?;
    let printed: Result<Printed, _> = toml::from_slice(&output.stdout);
    let odd = || {
        let said: String = String::from_utf8_lossy(&output.stderr)
            .chars()
            .take(300)
            .collect();
        failed(format!(
            "it answered with {}: {}",
            output.status,
            said.trim()
        ))
    };
    let printed = printed.map_err(|_| odd())?;
    match (output.status.code(), printed.fault.is_empty()) {
        (Some(0), true) | (Some(2), false) => Ok(printed),
        _ => Err(odd()),
    }
}

/// Beside this program, else by `PATH`.
fn found(name: &str) -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name(name));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

fn print(
    out: &mut impl io::Write,
    file: &Path,
    program: Program,
    told: &Printed,
    is_empty: bool,
) -> io::Result<()> {
    let path = file.display().to_string();
    let (path, name) = (harmless(&path), program.name());
    write!(out, "{BOLD}{path}{BOLD:#} ({name}): ")?;
    if told.fault.is_empty() {
        let empty = if is_empty {
            "; no key is set, so that all have their defaults"
        } else {
            ""
        };
        writeln!(out, "{GREEN}nothing is wrong{GREEN:#}{empty}")?;
    } else {
        let count = counted(told.fault.len() as u64, "fault");
        writeln!(out, "{RED}{count}{RED:#}")?;
    }
    for fault in &told.fault {
        print_one(out, fault, "allowed")?;
    }
    if !told.warning.is_empty() {
        let count = counted(told.warning.len() as u64, "warning");
        writeln!(out, "  {YELLOW}{count}{YELLOW:#}")?;
    }
    for warning in &told.warning {
        print_one(out, warning, "better")?;
    }
    if let Some(cost) = &told.node_cache {
        cost.print(out)?;
    }
    match &told.acts {
        Some(acts) => writeln!(out, "  {BOLD}what acts:{BOLD:#} {}", harmless(acts)),
        None => Ok(()),
    }
}

fn print_one(out: &mut impl io::Write, fault: &Fault, word: &str) -> io::Result<()> {
    let key = if fault.key.is_empty() {
        "the file"
    } else {
        &fault.key
    };
    let value = match fault.shown() {
        Some(value) => format!(" = {value}"),
        None => " is missing".to_owned(),
    };
    writeln!(out, "  {BOLD}{}{BOLD:#}{}", harmless(key), harmless(&value))?;
    writeln!(out, "    {word}: {}", harmless(&fault.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_keys_that_only_one_program_has() {
        let table = [
            ("profile = 'cordon'", Some(Program::Controller)),
            ("[quarantine]\n[log]", Some(Program::Controller)),
            ("[kernel_log]", Some(Program::Agent)),
            ("[controller]\nurl = 'x'", Some(Program::Agent)),
            ("[log]", None),
            ("", None),
        ];
        for (text, want) in table {
            let told = told_by_keys(Path::new("a"), &text.parse().unwrap()).unwrap();
            assert_eq!(told, want, "{text:?}");
        }
        let both = "[socket]\n[store]".parse().unwrap();
        let error = told_by_keys(Path::new("a"), &both).unwrap_err();
        assert_eq!(error.code(), "config_mixed");
    }
    #[test]
    fn the_keys_that_tell_are_those_of_the_configuration_reference() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        let section = |name: &str| {
            let start = page.find(&format!("## {name}\n")).unwrap();
            let text = &page[start + 3..];
            let text = &text[..text.find("\n## ").unwrap_or(text.len())];
            let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
            let keys = rows.filter_map(|row| row.split([' ', '.']).next());
            let keys: std::collections::BTreeSet<&str> = keys.filter(|key| *key != "key").collect();
            keys
        };
        let (controller, agent) = (section("warden-controller"), section("warden-agent"));
        assert!(
            controller
                .difference(&agent)
                .eq(sorted(&CONTROLLERS).iter())
        );
        assert!(agent.difference(&controller).eq(sorted(&AGENTS).iter()));
    }

    fn sorted(keys: &[&'static str]) -> std::collections::BTreeSet<&'static str> {
        keys.iter().copied().collect()
    }
}
