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
    #[error(
        "can't open {name}: {source}; check its path, and that you may read it [log_unopenable]"
    )]
    Open { name: String, source: io::Error },
    #[error(
        "{name} is a folder; name the files in it. A journal's folder: `journalctl -k -D {name} | \
         warden scan -` [log_is_folder]"
    )]
    Folder { name: String },
    #[error("{name} is {what}; scan its text: `{command} FILE | warden scan -` [log_is_no_text]")]
    NoText {
        name: String,
        what: &'static str,
        command: &'static str,
    },
    #[error(
        "can't open {KMSG}: {0}; run as root, or pipe the log in: `dmesg | warden scan -` \
         [kmsg_unopenable]"
    )]
    OpenKmsg(#[source] io::Error),
    #[error(
        "can't read {name} beyond line {line}: {source}; what was found before it stands \
         [log_unreadable]"
    )]
    Read {
        name: String,
        line: u64,
        source: io::Error,
    },
    #[error("can't write the result")]
    Output(#[source] io::Error),
}

impl SourceError {
    /// Whether a part of the log was read before.
    pub(super) fn is_partial(&self) -> bool {
        matches!(self, Self::Read { line: 1.., .. })
    }
}

/// First bytes of files in which people keep logs that are no text, and what makes text of them:
/// read as they are, they would seem to be without faults.
const NO_TEXT: [(&[u8], &str, &str); 8] = [
    (b"\x1f\x8b", "compressed (gzip)", "zcat"),
    (b"\xfd7zXZ\0", "compressed (xz)", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)", "zstdcat"),
    (b"BZh", "compressed (bzip2)", "bzcat"),
    (b"\x04\x22\x4d\x18", "compressed (lz4)", "lz4cat"),
    (b"LPKSHHRH", "a binary journal", "journalctl -k --file"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
];

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
                let about = file.metadata().map_err(open)?;
                if about.is_dir() {
                    let name = self.to_string();
                    return Err(SourceError::Folder { name });
                }
                let bar = progress(about.len());
                let result = self.read_lines(BufReader::new(bar.wrap_read(file)), sink);
                bar.finish_and_clear();
                result
            }
        }
    }

    fn read_lines(&self, mut input: impl BufRead, sink: Sink<'_>) -> Result<(), SourceError> {
        let mut line = Vec::new();
        let (mut number, mut cut) = (0, 0);
        let unreadable = |line, source| SourceError::Read {
            name: self.to_string(),
            line,
            source,
        };
        self.expect_text(input.fill_buf().map_err(|error| unreadable(0, error))?)?;
        while let Some(length) =
            next_line(&mut input, &mut line).map_err(|error| unreadable(number, error))?
        {
            number += 1;
            cut += u64::from(length > MAX_LINE);
            sink(&line, &lines::record(&line)).map_err(SourceError::Output)?;
        }
        if cut > 0 {
            output::report_warning(&format!(
                "{self}: of {} only the first {} MiB were read",
                output::counted(cut, "line"),
                MAX_LINE / 1024 / 1024
            ));
        }
        Ok(())
    }

    /// By the first bytes.
    fn expect_text(&self, start: &[u8]) -> Result<(), SourceError> {
        let name = self.to_string();
        if let Some((_, what, command)) =
            NO_TEXT.iter().find(|(bytes, ..)| start.starts_with(bytes))
        {
            return Err(SourceError::NoText {
                name,
                what,
                command,
            });
        }
        if start.contains(&0) {
            output::report_warning(&format!("{name} does not look like text; is it a log?"));
        }
        Ok(())
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

/// Reads a line without its end into `line`, at most [`MAX_LINE`] bytes of it; answers with its
/// whole length, and with nothing at the end of the input.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<usize>> {
    line.clear();
    let (mut read, mut length) = (false, 0);
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
        length += part.len();
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(read.then_some(length))
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
        while next_line(&mut reader, &mut line).unwrap().is_some() {
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

    /// Gives its text, and then an error.
    struct Breaks(Cursor<&'static [u8]>);

    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("the disk is gone")),
                read => Ok(read),
            }
        }
    }

    #[test]
    fn what_was_read_before_an_error_is_told_apart_from_nothing() {
        for (text, lines, partial) in [(&b"a\nb\nc"[..], 2, true), (b"", 0, false)] {
            let mut read = 0;
            let broken = BufReader::with_capacity(4, Breaks(Cursor::new(text)));
            let result = Source::Stdin.read_lines(broken, &mut |_, _| {
                read += 1;
                Ok(())
            });
            let error = result.unwrap_err();
            assert_eq!((read, error.is_partial()), (lines, partial));
            assert!(
                error
                    .to_string()
                    .contains(&format!("beyond line {lines}: the disk"))
            );
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
