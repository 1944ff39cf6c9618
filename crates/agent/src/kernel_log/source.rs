//! `/dev/kmsg`, or a FIFO that carries records in its form.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use detect::kmsg::MAX_RECORD;
use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::unix::pipe::Receiver;

/// One open source. Reads never block; [`Source::readable`] waits by epoll.
#[derive(Debug)]
pub(super) struct Source {
    file: Receiver,
    /// Lines of a FIFO; none if one read is one record.
    lines: Option<Lines>,
    /// Whether the end was reached once. Until then the descriptor is read directly, because
    /// epoll would not tell about a source that is empty from the start.
    waited: bool,
    /// Reads in a row that failed with an error that the next read usually mends.
    failed_reads: u32,
}

/// So many of them in a row: the source is no kernel log, and reading on would only burn the CPU.
/// In the worst flood a read or two are overtaken by the ring.
const FAILED_READS: u32 = 1_000;

/// Bytes of a FIFO, of which the first `taken` were used.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    taken: usize,
    /// The rest of a line that was too long is being passed over.
    skipping: bool,
}

/// What one read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// A record of so many bytes at the start of the buffer.
    Record(usize),
    /// Nothing more for now.
    End,
    /// Nothing to look at: a continuation line, or records overwritten while reading.
    Nothing,
}

impl Source {
    /// Opens the kernel's ring at its oldest record.
    ///
    /// # Errors
    /// If it can't be opened (no permission).
    pub(super) fn kmsg() -> io::Result<Self> {
        Self::new(open("/dev/kmsg".as_ref(), OFlags::RDONLY)?, None)
    }

    /// Opens a FIFO. It stays open when its writers close it.
    ///
    /// # Errors
    /// If it can't be opened, or is no FIFO.
    pub(super) fn pipe(path: &Path) -> io::Result<Self> {
        let file = open(path, OFlags::RDWR)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::Fifo {
            let why = "is no FIFO; make one with mkfifo";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Self::new(file, Some(Lines::default()))
    }

    fn new(file: OwnedFd, lines: Option<Lines>) -> io::Result<Self> {
        // "Unchecked" means that it need not be a pipe: any descriptor that epoll takes will do.
        let file = Receiver::from_owned_fd_unchecked(file)?;
        Ok(Self {
            file,
            lines,
            waited: false,
            failed_reads: 0,
        })
    }

    /// Reads the next record into `record`, without waiting.
    ///
    /// # Errors
    /// If the source fails.
    pub(super) fn read(&mut self, record: &mut [u8; MAX_RECORD]) -> io::Result<Read> {
        if self.lines.is_none() {
            return match self.fill(record) {
                Ok(0) => Ok(Read::End),
                Ok(length) => {
                    self.failed_reads = 0;
                    Ok(Read::Record(length))
                }
                Err(error) => self.failed(error),
            };
        }
        loop {
            if let Some(read) = self.lines.as_mut().and_then(|lines| lines.next(record)) {
                return Ok(read);
            }
            match self.fill(record) {
                Ok(0) => return Ok(Read::End),
                Ok(length) => {
                    if let Some(lines) = &mut self.lines {
                        lines.buffer.extend_from_slice(&record[..length]);
                    }
                }
                Err(error) => return self.failed(error),
            }
        }
    }

    /// Waits until there may be more. Call it only after [`Read::End`].
    ///
    /// # Errors
    /// If the source fails.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.file.readable().await
    }

    fn fill(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.waited {
            self.file.try_read(buffer)
        } else {
            Ok(rustix::io::read(&self.file, buffer)?)
        }
    }

    fn failed(&mut self, error: io::Error) -> io::Result<Read> {
        use io::ErrorKind::{BrokenPipe, Interrupted, InvalidInput, WouldBlock};
        let kind = error.kind();
        if kind == WouldBlock {
            self.failed_reads = 0;
            self.waited = true;
            return Ok(Read::End);
        }
        // EPIPE: overwritten while reading; EINVAL: a record longer than the kernel makes. Either
        // way the next read goes on, and the sequence numbers tell what is missing.
        if matches!(kind, BrokenPipe | InvalidInput | Interrupted)
            && self.failed_reads < FAILED_READS
        {
            self.failed_reads += 1;
            return Ok(Read::Nothing);
        }
        Err(error)
    }
}

impl Lines {
    /// The next whole line, if there is one.
    fn next(&mut self, record: &mut [u8; MAX_RECORD]) -> Option<Read> {
        let rest = &self.buffer[self.taken..];
        let Some(end) = rest.iter().position(|b| *b == b'\n') else {
            self.buffer.drain(..self.taken);
            self.taken = 0;
            if self.buffer.len() >= MAX_RECORD {
                self.buffer.clear();
                self.skipping = true;
            }
            return None;
        };
        self.taken += end + 1;
        let line = &rest[..end];
        let whole = !std::mem::take(&mut self.skipping);
        if !whole || line.len() > MAX_RECORD || line.first().is_none_or(|b| *b == b' ') {
            return Some(Read::Nothing);
        }
        record[..end].copy_from_slice(line);
        Some(Read::Record(end))
    }
}

fn open(path: &Path, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        (folder, path)
    }

    fn text(source: &mut Source) -> Option<String> {
        let mut record = [0; MAX_RECORD];
        loop {
            match source.read(&mut record).unwrap() {
                Read::Record(length) => {
                    return Some(String::from_utf8_lossy(&record[..length]).into_owned());
                }
                Read::End => return None,
                Read::Nothing => {}
            }
        }
    }

    #[tokio::test]
    async fn a_pipe_gives_whole_lines_and_outlives_its_writers() {
        let (_folder, path) = fifo();
        let mut source = Source::pipe(&path).unwrap();
        assert_eq!(text(&mut source), None);
        for (written, want) in [
            ("4,1,2,-;one\n SUB=x\n4,2,2,-;tw", "4,1,2,-;one"),
            ("o\n", "4,2,2,-;two"),
        ] {
            let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            writer.write_all(written.as_bytes()).unwrap();
            drop(writer);
            source.readable().await.unwrap();
            assert_eq!(text(&mut source).as_deref(), Some(want));
            while text(&mut source).is_some() {}
        }
    }

    #[tokio::test]
    async fn a_line_longer_than_any_record_is_passed_over() {
        let (_folder, path) = fifo();
        let mut source = Source::pipe(&path).unwrap();
        let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(&vec![b'x'; 3 * MAX_RECORD]).unwrap();
        writer.write_all(b"\nshort\n").unwrap();
        assert_eq!(text(&mut source).as_deref(), Some("short"));
    }

    #[tokio::test]
    async fn only_a_fifo_is_a_pipe() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Source::pipe(file.path()).unwrap_err();
        assert!(error.to_string().contains("mkfifo"), "{error}");
    }

    #[tokio::test]
    async fn a_source_that_never_gives_a_record_fails_instead_of_spinning() {
        // Reading it is EINVAL, as a record longer than the buffer would be.
        let no_log = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let mut source = Source::new(no_log.unwrap(), None).unwrap();
        let mut record = [0; MAX_RECORD];
        for _ in 0..FAILED_READS {
            assert_eq!(source.read(&mut record).unwrap(), Read::Nothing);
        }
        source.read(&mut record).unwrap_err();
    }
}
