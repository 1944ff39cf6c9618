//! The machine that the figures are from.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Zoned;

use crate::stats::{Samples, millis, number};

/// What is written above the table.
#[derive(Debug)]
pub(crate) struct Facts {
    /// `2026-11-29`, local.
    pub date: String,
    /// The commit's short hash, with `-changed` if files differ from it.
    pub commit: String,
    /// Name and value.
    pub machine: Vec<(&'static str, String)>,
}

impl Facts {
    /// Looks at the machine; `scratch` is on the disk that the stores of this run are on.
    ///
    /// # Errors
    /// The scratch folder can't be written.
    pub(crate) fn observe(scratch: &Path) -> anyhow::Result<Self> {
        let fsync = fsync(scratch)?;
        let read = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().replace('\t', " ")
        };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let build = if cfg!(debug_assertions) {
            "development: not to be compared with the goals"
        } else {
            "release"
        };
        let ring = kernel_ring().map_or_else(
            || "unknown".to_owned(),
            |bytes| format!("{} KiB", bytes / 1024),
        );
        Ok(Self {
            date: Zoned::now().date().to_string(),
            commit: commit(),
            machine: vec![
                ("build", build.to_owned()),
                ("cores", cores.to_string()),
                ("memory", memory(&read("/proc/meminfo"))),
                ("kernel", read("/proc/sys/kernel/osrelease")),
                ("kernel ring", ring),
                ("kernel.printk", read("/proc/sys/kernel/printk")),
                ("load at the start", read("/proc/loadavg")),
                (
                    "fdatasync of 8 KiB",
                    format!("{}, on {}", fsync.text(&[50, 99]), disk(scratch)),
                ),
            ],
        })
    }
}

/// The root of the checkout.
pub(crate) fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Writes and syncs 8 KiB 200 times, as a small commit does.
///
/// # Errors
/// The folder can't be written.
pub(crate) fn fsync(folder: &Path) -> anyhow::Result<Samples> {
    let path = folder.join("fsync");
    let mut file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let block = [0x5a; 8192];
    // Written once before, so that no block has to be allocated while it is timed.
    file.write_all(&block.repeat(200))?;
    file.sync_all()?;
    let samples = (0..200_u64).map(|index| {
        let begin = Instant::now();
        file.write_all_at(&block, index * 8192)?;
        file.sync_data()?;
        Ok(begin.elapsed())
    });
    let samples: std::io::Result<Samples> = samples.collect();
    fs::remove_file(&path).ok();
    samples.with_context(|| format!("writing {}", path.display()))
}

/// Above this a disk is too slow for the goals of the store (DESIGN 5).
pub(crate) const FAST_FSYNC: Duration = Duration::from_micros(300);

/// For a note beside the store's rows.
pub(crate) fn fsync_note(fsync: &Samples) -> String {
    let fast = fsync.median() <= FAST_FSYNC;
    format!(
        "fdatasync P50 {} ms; the goal is for a disk of at most {} ms{}",
        number(millis(fsync.median())),
        number(millis(FAST_FSYNC)),
        if fast { "" } else { ", which this is not" }
    )
}

/// What is free for the kernel's messages, by the kernel's own account.
#[expect(
    unsafe_code,
    reason = "no safe call asks for the size of the kernel's ring"
)]
fn kernel_ring() -> Option<u64> {
    unsafe extern "C" {
        fn klogctl(command: i32, buffer: *mut u8, length: i32) -> i32;
    }
    /// `SYSLOG_ACTION_SIZE_BUFFER`.
    const SIZE: i32 = 10;
    // SAFETY: this command takes no buffer and changes nothing.
    let size = unsafe { klogctl(SIZE, std::ptr::null_mut(), 0) };
    u64::try_from(size).ok().filter(|size| *size > 0)
}

/// Kind and name of the file system that holds a folder: `ext4 on /dev/vda`.
fn disk(folder: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // Device, mount point, kind; of two that hold it the inner one, and of two at one place the
    // later.
    let of = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        folder
            .starts_with(point)
            .then_some((point.len(), device, kind))
    });
    let inner = of.max_by_key(|(length, ..)| *length);
    inner.map_or_else(
        || "an unknown file system".to_owned(),
        |(_, device, kind)| format!("{kind} on {device}"),
    )
}

fn memory(meminfo: &str) -> String {
    let total = meminfo.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()
    });
    total.map_or_else(|| "unknown".to_owned(), |kib| format!("{} MiB", kib / 1024))
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(workspace())
            .args(arguments)
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let hash = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_some_and(|files| !files.is_empty()) {
        format!("{hash}-changed")
    } else {
        hash
    }
}
