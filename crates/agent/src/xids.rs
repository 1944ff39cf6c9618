//! What is counted of XIDs, under the reference's names: its alerts go on working.
//!
//! # Invariants
//! - At most [`MAX_CODES`] codes are told apart: a sub-coded line may carry any word.
//! - A code that was counted before costs no allocation.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Codes that are counted each for themselves. The table has 172, and a machine meets a few dozen.
pub const MAX_CODES: usize = 256;
/// Stands for all further codes.
const OTHER: &str = "other";
/// Upper bounds in seconds: the Prometheus clients' default, as the reference has them.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// XIDs read: (name, type, labels, meaning).
pub const ERRORS: Described = (
    "syslog_health_monitor_xid_errors",
    "counter",
    &["node", "err_code"],
    "XIDs read in the kernel log, by code; those of the table also while there are none",
);
/// Time for each.
pub const LATENCY: Described = (
    "syslog_health_monitor_xid_processing_latency_seconds",
    "histogram",
    &[],
    "Time from an XID's record to its event",
);

/// Name, type, labels, and what it tells.
pub type Described = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

/// The numbers.
#[derive(Debug, Default)]
pub struct Xids(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    codes: BTreeMap<String, u64>,
    other: u64,
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
    count: u64,
}

impl Xids {
    /// Counts an XID and how long it took from its record to its event.
    pub fn count(&self, code: &str, took: Duration) {
        let mut inner = self.lock();
        inner.count += 1;
        inner.seconds += took.as_secs_f64();
        let bucket = BUCKETS
            .iter()
            .position(|bound| took.as_secs_f64() <= *bound);
        if let Some(bucket) = bucket {
            inner.buckets[bucket] += 1;
        }
        if let Some(count) = inner.codes.get_mut(code) {
            *count += 1;
        } else if inner.codes.len() < MAX_CODES {
            inner.codes.insert(code.to_owned(), 1);
        } else {
            inner.other += 1;
        }
    }

    /// In the text format of Prometheus.
    pub fn page(&self, node: &str) -> String {
        let inner = self.lock();
        let mut text = head(&ERRORS);
        let (name, ..) = ERRORS;
        let mut line = |code: &str, count: u64| {
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "{name}{{node=\"{node}\",err_code=\"{code}\"}} {count}"
            );
        };
        for entry in detect::xid::entries() {
            let code = entry.code.to_string();
            if !inner.codes.contains_key(&code) {
                line(&code, 0);
            }
        }
        for (code, count) in &inner.codes {
            line(code, *count);
        }
        if inner.other > 0 {
            line(OTHER, inner.other);
        }
        text.push_str(&head(&LATENCY));
        let (name, ..) = LATENCY;
        let mut below = 0;
        for (bound, count) in BUCKETS.iter().zip(inner.buckets) {
            below += count;
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let (seconds, count) = (inner.seconds, inner.count);
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum {seconds}\n{name}_count {count}");
        text
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The two lines before a metric's numbers.
pub fn head((name, kind, _, help): &Described) -> String {
    format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_table_has_its_series_before_it_is_met() {
        let xids = Xids::default();
        xids.count("79", Duration::from_micros(300));
        xids.count("79", Duration::from_millis(30));
        xids.count("145.RLW_REMAP", Duration::from_secs(60));
        let page = xids.page("gpu-1");
        for line in [
            "# TYPE syslog_health_monitor_xid_errors counter",
            r#"syslog_health_monitor_xid_errors{node="gpu-1",err_code="79"} 2"#,
            r#"syslog_health_monitor_xid_errors{node="gpu-1",err_code="145.RLW_REMAP"} 1"#,
            r#"syslog_health_monitor_xid_errors{node="gpu-1",err_code="119"} 0"#,
            r#"syslog_health_monitor_xid_processing_latency_seconds_bucket{le="0.005"} 1"#,
            r#"syslog_health_monitor_xid_processing_latency_seconds_bucket{le="0.05"} 2"#,
            r#"syslog_health_monitor_xid_processing_latency_seconds_bucket{le="10"} 2"#,
            r#"syslog_health_monitor_xid_processing_latency_seconds_bucket{le="+Inf"} 3"#,
            "syslog_health_monitor_xid_processing_latency_seconds_count 3",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
        let series = page.matches("xid_errors{").count();
        assert_eq!(series, detect::xid::entries().len() + 1);
    }

    #[test]
    fn made_up_codes_do_not_grow_it() {
        let xids = Xids::default();
        for n in 0..10_000 {
            xids.count(&format!("145.WORD{n}"), Duration::ZERO);
        }
        assert_eq!(xids.lock().codes.len(), MAX_CODES);
        let other = format!("err_code=\"other\"}} {}\n", 10_000 - MAX_CODES);
        assert!(xids.page("n").contains(&other));
    }
}
