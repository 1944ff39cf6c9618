//! `warden scan`: decodes kernel logs anywhere, without a cluster.
//!
//! # Invariants
//! - Memory does not grow with the input: lines are read one at a time and cut at
//!   `source::MAX_LINE`; at most `group::MAX_GROUPS` faults of a file are told apart.
//! - Nothing of a log reaches the terminal without its control characters taken out.
//!
//! A file does not tell who wrote a line, so every line is believed.

use std::convert::Infallible;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Arg;
use detect::{Finding, KernelLog, KernelLogConfig, Record};

use crate::output::{self, Exit, Format, Options};

mod group;
mod report;
mod source;

use group::Groups;
use source::{Source, SourceError};

const AFTER_HELP: &str = "\
This version finds XIDs, the error numbers of NVIDIA's driver. Text is a table with one row a \
fault; JSON is one object a line of the log that states a fault, repeats too.

Not part of this version: --journal DIR, --npd CONFIG.json, --driver-version V, and all faults \
that are no XIDs.

Examples:
  dmesg | warden scan -
  journalctl -k -b -1 | warden scan -
  warden scan --format json /var/log/kern.log

Exit codes: 0 no faults found; 1 faults found; 2 wrong usage, or a log could not be read (what \
the others hold is still printed).";

/// What to read and how to print it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Kernel logs, in any of the usual forms (dmesg, dmesg -T, journalctl, syslog, /dev/kmsg); `-`
    /// is standard input.
    #[arg(value_name = "FILE", required_unless_present = "dmesg")]
    files: Vec<PathBuf>,
    /// Read this machine's kernel log (as root).
    #[arg(long, conflicts_with = "files")]
    dmesg: bool,
    /// With --format json: one object a fault, with count, first and last line, instead of one a
    /// line. Text is always grouped.
    #[arg(long)]
    group: bool,
}

/// Flags of the design that are still to come, with what to do instead.
const LATER: [(&str, &str); 3] = [
    (
        "journal",
        "not part of this version; pipe the journal in: `journalctl -k -D DIR | warden scan -`",
    ),
    (
        "npd",
        "rules of node-problem-detector are not part of this version; leave the flag out",
    ),
    (
        "driver-version",
        "not part of this version: none of its tables depends on the driver's version yet; leave \
         the flag out",
    ),
];

/// Flags that are still to come say so instead of being unknown.
pub(crate) fn with_later_flags(command: clap::Command) -> clap::Command {
    let later = |(flag, why): (&'static str, &'static str)| {
        let refuse = move |_: &str| Err::<Infallible, _>(why);
        Arg::new(flag).long(flag).hide(true).value_parser(refuse)
    };
    command.args(LATER.map(later))
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Standard output.
    #[error("can't write the result to standard output")]
    Output(#[from] io::Error),
}

impl ScanError {
    /// Stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Output(_) => "output_unwritable",
        }
    }
}

/// Reads every source and prints what it states. A source that can't be read is reported and the
/// others are still read; the answer is then [`Exit::Error`].
///
/// # Errors
/// If standard output can't be written, other than by a reader that went away (`| head`).
pub fn run(args: &Args, options: &Options) -> Result<Exit, ScanError> {
    let sources = if args.dmesg {
        vec![Source::Kmsg]
    } else {
        args.files.iter().map(|file| Source::file(file)).collect()
    };
    let mut out = options.stdout();
    let mut exit = Exit::Clean;
    for source in &sources {
        let name = (sources.len() > 1).then(|| source.to_string());
        let mut scan = Scan {
            log: KernelLog::new(KernelLogConfig {
                accept_user_records: true,
            }),
            groups: Groups::default(),
            each: options.format == Format::Json && !args.group,
            file: name.as_deref(),
            out: &mut out,
            findings: Vec::new(),
            lines: 0,
            exit: Exit::Clean,
        };
        let read = source.read(&mut |line, record| scan.line(line, record));
        let (groups, lines, found) = (scan.groups, scan.lines, scan.exit);
        exit = exit.max(found);
        let is_whole = read.is_ok();
        match read {
            Ok(()) => {}
            Err(SourceError::Output(error)) => return gone_or(error, exit),
            Err(error) => {
                output::report_error(&error);
                exit = Exit::Error;
                if !error.is_partial() {
                    continue;
                }
            }
        }
        let printed = match options.format {
            Format::Json if args.group => report::groups(&mut out, &groups, name.as_deref()),
            Format::Json => Ok(()),
            Format::Text => report::table(&mut out, &groups, &source.to_string(), lines, is_whole),
        };
        if let Err(error) = printed.and_then(|()| out.flush()) {
            return gone_or(error, exit);
        }
        if groups.left_out() > 0 {
            output::report_warning(&format!(
                "{source}: more than {} different faults; {} further lines are not grouped",
                group::MAX_GROUPS,
                groups.left_out()
            ));
        }
    }
    Ok(exit)
}

/// A reader that went away has seen what it wanted.
fn gone_or(error: io::Error, exit: Exit) -> Result<Exit, ScanError> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Ok(exit)
    } else {
        Err(error.into())
    }
}

/// One source under way.
struct Scan<'a, W> {
    log: KernelLog,
    groups: Groups,
    /// Print each line's finding as JSON.
    each: bool,
    /// Named in the output if there are several.
    file: Option<&'a str>,
    out: &'a mut W,
    findings: Vec<Finding>,
    lines: u64,
    exit: Exit,
}

impl<W: Write> Scan<'_, W> {
    fn line(&mut self, line: &[u8], record: &Record<'_>) -> io::Result<()> {
        self.lines += 1;
        self.log.observe(record, &mut self.findings);
        for finding in self.findings.drain(..) {
            if !finding.event.is_healthy {
                self.exit = Exit::Unhealthy;
            }
            let repeat_of = self.groups.add(&finding, self.lines, line);
            if self.each {
                report::finding(self.out, &finding, self.lines, repeat_of, self.file)?;
            }
        }
        Ok(())
    }
}
