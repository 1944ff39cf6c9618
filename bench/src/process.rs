//! Memory and CPU of a process, from /proc.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::stats::number;

/// What a process had used at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    at: Instant,
    cpu: Duration,
    anonymous_kib: u64,
    file_kib: u64,
}

impl Usage {
    /// Looks at a process.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("looking at process {pid}"))?;
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let text = line.map(|line| line.trim().trim_end_matches("kB").trim());
            text.and_then(|text| text.parse().ok())
                .with_context(|| format!("/proc/{pid}/status has no {key}"))
        };
        let shared: u64 = kib("RssShmem:")?;
        let file: u64 = kib("RssFile:")?;
        Ok(Self {
            at: Instant::now(),
            cpu: cpu(pid)?,
            anonymous_kib: kib("RssAnon:")?,
            file_kib: file + shared,
        })
    }

    /// All that is resident.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.anonymous_kib + self.file_kib
    }

    /// What is not backed by a file.
    pub(crate) fn anonymous_kib(&self) -> u64 {
        self.anonymous_kib
    }

    /// `9.8 (1.1) MiB`: all, and in brackets what is anonymous.
    pub(crate) fn memory(&self) -> String {
        format!(
            "{} ({}) MiB",
            number(mib(self.resident_kib())),
            number(mib(self.anonymous_kib))
        )
    }

    /// CPU time since an earlier look.
    pub(crate) fn cpu_since(&self, before: &Self) -> String {
        format!("{:.2} s", self.cpu.saturating_sub(before.cpu).as_secs_f64())
    }

    /// Thousandths of a core since an earlier look.
    pub(crate) fn millicores(&self, before: &Self) -> f64 {
        let passed = (self.at - before.at).as_secs_f64().max(1e-9);
        self.cpu.saturating_sub(before.cpu).as_secs_f64() / passed * 1e3
    }
}

pub(crate) fn mib(kib: u64) -> f64 {
    u32::try_from(kib).map_or_else(|_| f64::from(u32::MAX), f64::from) / 1024.0
}

/// Of all its threads, in nanoseconds: the ticks of `stat` are far too coarse for an idle program.
/// A thread that has ended is not in the sum.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))? {
        // A thread may end while we look.
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
        sum += Duration::from_nanos(nanoseconds.unwrap_or_default());
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_a_busy_process_rises() {
        // A process of its own: threads of other tests that end would take their time with them.
        let mut busy = std::process::Command::new("/bin/sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let before = Usage::of(busy.id()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let after = loop {
            let after = Usage::of(busy.id()).unwrap();
            if after.millicores(&before) > 0.0 || Instant::now() > end {
                break after;
            }
            std::thread::yield_now();
        };
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(after.millicores(&before) > 0.0);
        assert!(after.resident_kib() >= after.anonymous_kib());
    }
}
