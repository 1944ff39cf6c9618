//! The kernel's log: writing lines as a user, and the floor under every reader of it.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::ring::Ring;

/// PCI domain of the lines, which no machine has and no test here uses.
pub(crate) const DOMAIN: &str = "be7c";

/// Holds the kernel's log until the lock is dropped, so that nobody else's flood or fault mixes in.
///
/// # Errors
/// This is not root, or somebody else holds it for too long.
pub(crate) async fn take_ring() -> anyhow::Result<Ring> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "lines are written to /dev/kmsg, which only root may"
    );
    Ring::take().await
}

/// A line of a GPU that fell off the bus; each number is another GPU.
pub(crate) fn xid_line(number: usize) -> String {
    format!(
        "NVRM: Xid (PCI:{}): 79, pid=4242, name=bench-{number}, GPU has fallen off the bus.",
        pci(number)
    )
}

/// The GPU that the line of this number is about.
pub(crate) fn pci(number: usize) -> String {
    let (bus, device) = (number / 32 % 256, number % 32);
    format!("{DOMAIN}:{bus:02x}:{device:02x}")
}

/// Lifts the kernel's limit of user writes (10 in 5 s for each open file) as long as it lives: to
/// open the log anew for each line is too slow for a flood.
#[derive(Debug)]
pub(crate) struct Unlimited {
    before: String,
    log: File,
}

/// `ratelimit`, `on` or `off`.
const LIMIT: &str = "/proc/sys/kernel/printk_devkmsg";

impl Unlimited {
    /// Lifts it for the whole machine and opens the log.
    ///
    /// # Errors
    /// The kernel was started with a fixed setting, or the log can't be opened.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let before = std::fs::read_to_string(LIMIT).with_context(|| format!("reading {LIMIT}"))?;
        // The kernel takes the word only with its newline.
        std::fs::write(LIMIT, "on\n").with_context(|| format!("writing {LIMIT}"))?;
        // A file keeps the limit that stood when it was opened.
        let log = OpenOptions::new()
            .write(true)
            .open("/dev/kmsg")
            .context("opening /dev/kmsg to write");
        match log {
            Ok(log) => Ok(Self { before, log }),
            Err(error) => {
                std::fs::write(LIMIT, &before).ok();
                Err(error)
            }
        }
    }

    /// Writes one record.
    ///
    /// # Errors
    /// The log can't be written.
    pub(crate) fn write(&mut self, line: &str) -> anyhow::Result<()> {
        self.log
            .write_all(format!("<6>{line}\n").as_bytes())
            .context("writing to /dev/kmsg")
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        // What can't be put back now could not be changed before.
        std::fs::write(LIMIT, &self.before).ok();
    }
}

/// A thread in a blocking read of the log: tells when each line came that contains `pattern`.
///
/// # Errors
/// The log can't be opened.
pub(crate) fn blocked_reader(
    pattern: &'static str,
) -> anyhow::Result<mpsc::Receiver<(Instant, String)>> {
    let mut log = at_end()?;
    let (tell, told) = mpsc::channel();
    std::thread::Builder::new()
        .name("kmsg-reader".to_owned())
        .spawn(move || {
            let mut record = vec![0; 8192];
            loop {
                // An error says that records were overwritten; the next read goes on.
                let Ok(length) = log.read(&mut record) else {
                    continue;
                };
                let at = Instant::now();
                let text = String::from_utf8_lossy(&record[..length]);
                if text.contains(pattern) && tell.send((at, text.into_owned())).is_err() {
                    return;
                }
            }
        })?;
    Ok(told)
}

/// The log behind its last record, in blocking mode.
fn at_end() -> anyhow::Result<File> {
    let mut log = OpenOptions::new()
        .read(true)
        .open("/dev/kmsg")
        .context("opening /dev/kmsg to read")?;
    std::io::Seek::seek(&mut log, std::io::SeekFrom::End(0)).context("seeking in /dev/kmsg")?;
    Ok(log)
}

/// Writes `count` lines at `a_second` (none: as fast as it goes); answers how long it took.
///
/// # Errors
/// A write fails.
pub(crate) fn flood(
    count: usize,
    a_second: Option<f64>,
    mut write: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    for index in 0..count {
        if let Some(a_second) = a_second {
            let due = Duration::from_secs_f64(crate::stats::float(index) / a_second);
            // Shorter sleeps than this overshoot; a hundred lines at a time are well below a ring.
            while due.saturating_sub(begin.elapsed()) > Duration::from_millis(1) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        write(index)?;
    }
    Ok(begin.elapsed())
}
