//! An agent under test, the controller that it talks to, and waiting.

mod agent;
mod controller;

pub(crate) use agent::{Agent, Setup};
pub(crate) use controller::{Controller, Received, Tls};

use std::time::{Duration, Instant};

/// Longest wait of a test for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until the answer is there.
pub(crate) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A line of the kernel log in the form of /dev/kmsg, written by the kernel just now.
pub(crate) fn record(sequence: u64, text: &str) -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    format!("3,{sequence},{micros},-;{text}\n")
}

/// An XID of one of 256 GPUs.
pub(crate) fn xid(sequence: u64, code: u32, gpu: u8) -> String {
    record(
        sequence,
        &format!("NVRM: Xid (PCI:f00d:{gpu:02x}:00): {code}, pid=1, name=x, test {sequence}"),
    )
}
