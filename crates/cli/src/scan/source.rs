//! Where lines come from.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use detect::{Record, kmsg, lines};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::OFlags;

use crate::output;

/// A longer line is cut: what states a fault stands at its beginning.
pub(super) const MAX_LINE: usize = 1024 * 1024;
/// From this size a file takes long enough to show how far it is.
const PROGRESS_FROM: u64 = 64 * 1024 * 1024;
/// Records read of this machine's log. A ring of 128 MiB, the largest seen, holds fewer; the bound
/// is for one that is written faster than it is read.
const MAX_RECORDS: u64 = 2_000_000;
const KMSG: &str = "/dev/kmsg";

/// One log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Stdin,
    File(PathBuf),
    Kmsg,
}

/// Why a log could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("can't open {name}; check that it exists and may be read by you [log_unopenable]")]
    Open { name: String, source: io::Error },
    #[error(
        "can't open {KMSG}; run as root, or pipe the log in: `dmesg | warden scan -` [kmsg_unopenable]"
    )]
    OpenKmsg(#[source] io::Error),
    #[error(
        "can't read {name} beyond line {line}; what was found before it stands [log_unreadable]"
    )]
    Read {
        name: String,
        line: u64,
        source: io::Error,
    },
    #[error("can't write the result")]
    Output(#[source] io::Error),
}

/// Takes a line as printed, and as a record.
type Sink<'a> = &'a mut dyn FnMut(&[u8], &Record<'_>) -> io::Result<()>;

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Kmsg => f.write_str(KMSG),
        }
    }
}

impl Source {
    /// `-` is standard input.
    pub(super) fn file(path: &Path) -> Self {
        if path == Path::new("-") {
            Self::Stdin
        } else {
            Self::File(path.to_owned())
        }
    }

    /// Gives every line to `sink`.
    pub(super) fn read(&self, sink: Sink<'_>) -> Result<(), SourceError> {
        match self {
            Self::Stdin => self.read_lines(BufReader::new(io::stdin().lock()), sink),
            Self::Kmsg => self.read_kmsg(sink),
            Self::File(path) => {
                let open = |source| SourceError::Open {
                    name: self.to_string(),
                    source,
                };
                let file = File::open(path).map_err(open)?;
                let size = file.metadata().map_err(open)?.len();
                let bar = progress(size);
                let result = self.read_lines(BufReader::new(bar.wrap_read(file)), sink);
                bar.finish_and_clear();
                result
            }
        }
    }

    fn read_lines(&self, mut input: impl BufRead, sink: Sink<'_>) -> Result<(), SourceError> {
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            let more = next_line(&mut input, &mut line).map_err(|source| SourceError::Read {
                name: self.to_string(),
                line: number,
                source,
            })?;
            if !more {
                return Ok(());
            }
            number += 1;
            sink(&line, &lines::record(&line)).map_err(SourceError::Output)?;
        }
    }

    /// Each read of the device is one record. It never waits: the end is where it would.
    fn read_kmsg(&self, sink: Sink<'_>) -> Result<(), SourceError> {
        let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let mut device = OpenOptions::new()
            .read(true)
            .custom_flags(nonblock)
            .open(KMSG)
            .map_err(SourceError::OpenKmsg)?;
        let mut buffer = vec![0; kmsg::MAX_RECORD];
        let (mut number, mut overrun) = (0, false);
        while number < MAX_RECORDS {
            let length = match device.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The ring went round while we read: the next read goes on behind the gap.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    overrun = true;
                    continue;
                }
                Err(source) => {
                    return Err(SourceError::Read {
                        name: self.to_string(),
                        line: number,
                        source,
                    });
                }
            };
            number += 1;
            let bytes = &buffer[..length];
            let record = Record::parse(bytes).unwrap_or_else(|_| Record::printed(bytes));
            sink(bytes, &record).map_err(SourceError::Output)?;
        }
        if overrun {
            output::report_warning(
                "the kernel overwrote records while they were read; scan again if in doubt",
            );
        }
        Ok(())
    }
}

/// Reads a line without its end into `line`, at most [`MAX_LINE`] bytes of it; false at the end of
/// the input.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut read = false;
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            break;
        }
        read = true;
        let end = buffer.iter().position(|b| *b == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE - line.len())]);
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(read)
}

fn progress(size: u64) -> ProgressBar {
    if size < PROGRESS_FROM || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr());
    let style = "{bar:30} {percent:>3} %  {binary_bytes_per_sec}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Lengths and last bytes of all lines, read with a small buffer.
    fn lines_of(input: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = BufReader::with_capacity(7, Cursor::new(input));
        let mut lines = Vec::new();
        let mut line = Vec::new();
        while next_line(&mut reader, &mut line).unwrap() {
            lines.push(line.clone());
        }
        lines
    }

    #[test]
    fn lines_end_with_or_without_a_carriage_return_and_the_last_without_either() {
        let table: [(&[u8], &[&[u8]]); 5] = [
            (b"", &[]),
            (b"\n", &[b""]),
            (
                b"a\r\n\nlonger than the buffer\nlast",
                &[b"a", b"", b"longer than the buffer", b"last"],
            ),
            (b"a\n", &[b"a"]),
            (b"\xff\x00\n", &[b"\xff\x00"]),
        ];
        for (input, want) in table {
            assert_eq!(lines_of(input), want);
        }
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_is_whole() {
        let mut input = vec![b'x'; 3 * MAX_LINE];
        input.extend(b"\nnext\n");
        let lines = lines_of(&input);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].len(), MAX_LINE);
        assert_eq!(lines[1], b"next");
    }
}
