//! `warden config check FILE`: everything that is wrong with a configuration, before it is used.
//!
//! The program that reads the file checks it: `warden-controller --check-config FILE` or
//! `warden-agent --check-config FILE`, found beside this program or in `PATH`. It prints a TOML
//! table a fault. So the check is exactly what a start would say, and this program needs neither.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::output::{BOLD, Exit, Format, GREEN, Options, RED, counted, harmless, unless_gone};

/// Bytes of a configuration at most.
const LARGEST: u64 = 4 * 1024 * 1024;
/// Top-level keys that only one of the two knows.
const CONTROLLERS: [&str; 9] = [
    "profile",
    "kubernetes",
    "lease",
    "store",
    "ingest",
    "reports",
    "connector",
    "quarantine",
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

/// What about it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    act: Act,
}

/// See [`Args`].
#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Report everything that is wrong with a file: key, value, allowed form.
    Check(Check),
}

/// Which file.
#[derive(Debug, clap::Args)]
struct Check {
    /// The configuration (TOML).
    file: PathBuf,
    /// Whose it is; default: told by its keys.
    #[arg(long, value_enum)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fault {
    /// Full key; empty if the file as a whole is meant.
    key: String,
    /// The value; none if the key is missing.
    value: Option<String>,
    /// What would be right.
    allowed: String,
}

/// All that a program prints.
#[derive(Debug, Deserialize)]
struct Printed {
    #[serde(default)]
    fault: Vec<Fault>,
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
    /// Its keys don't tell.
    #[error(
        "configuration {} could be the controller's or the agent's; say which with --program",
        path.display()
    )]
    Whose {
        /// Its path.
        path: PathBuf,
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
            Self::Whose { .. } => "config_whose",
            Self::Program { .. } => "config_program",
            Self::Output(_) => "output_unwritable",
        }
    }
}

/// Checks and prints.
///
/// # Errors
/// [`ConfigError`] if nothing could be checked; faults are the answer [`Exit::Error`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ConfigError> {
    let Act::Check(Check { file, program }) = &args.act;
    let text = read(file)?;
    let Some(program) = program.or_else(|| told_by_keys(&text)) else {
        return Err(ConfigError::Whose { path: file.clone() });
    };
    let faults = faults(program, file)?;
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => {
            let result = serde_json::json!({
                "file": file.to_string_lossy(),
                "program": program.name(),
                "faults": faults,
            });
            writeln!(out, "{result}")
        }
        Format::Text => print(&mut out, file, program, &faults),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(if faults.is_empty() {
        Exit::Clean
    } else {
        Exit::Error
    })
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let error = |why: String| ConfigError::File {
        path: path.to_owned(),
        why,
    };
    let size = std::fs::metadata(path)
        .map_err(|e| error(e.to_string()))?
        .len();
    if size > LARGEST {
        return Err(error(format!(
            "it has {size} bytes; want at most {LARGEST}"
        )));
    }
    std::fs::read_to_string(path).map_err(|e| error(e.to_string()))
}

/// By the keys that only one of the two knows.
fn told_by_keys(text: &str) -> Option<Program> {
    let table: toml::Table = text.parse().ok()?;
    let has = |keys: &[&str]| keys.iter().any(|key| table.contains_key(*key));
    match (has(&CONTROLLERS), has(&AGENTS)) {
        (true, false) => Some(Program::Controller),
        (false, true) => Some(Program::Agent),
        (true, true) | (false, false) => None,
    }
}

fn faults(program: Program, file: &Path) -> Result<Vec<Fault>, ConfigError> {
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
    let faults = printed.map_err(|_| odd())?.fault;
    match (output.status.code(), faults.is_empty()) {
        (Some(0), true) | (Some(2), false) => Ok(faults),
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
    faults: &[Fault],
) -> io::Result<()> {
    let path = file.display().to_string();
    let (path, name) = (harmless(&path), program.name());
    if faults.is_empty() {
        return writeln!(
            out,
            "{BOLD}{path}{BOLD:#} ({name}): {GREEN}nothing is wrong{GREEN:#}"
        );
    }
    let count = counted(faults.len() as u64, "fault");
    writeln!(out, "{BOLD}{path}{BOLD:#} ({name}): {RED}{count}{RED:#}")?;
    for fault in faults {
        let key = if fault.key.is_empty() {
            "the file"
        } else {
            &fault.key
        };
        let value = match &fault.value {
            Some(value) => format!(" = {value}"),
            None => " is missing".to_owned(),
        };
        writeln!(out, "  {BOLD}{}{BOLD:#}{}", harmless(key), harmless(&value))?;
        writeln!(out, "    allowed: {}", harmless(&fault.allowed))?;
    }
    Ok(())
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
            ("[socket]\n[store]", None),
            ("not toml", None),
        ];
        for (text, want) in table {
            assert_eq!(told_by_keys(text), want, "{text:?}");
        }
    }
}
