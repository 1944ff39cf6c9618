//! Reads the kernel log: records in, events of the detectors out.
//!
//! # Guarantees
//! - One reader feeds all rules; it waits by epoll and never polls.
//! - A record that matches is on its way to disk and controller before the next one is read, with
//!   the position behind it in the same transaction. Nothing is kept for records that match
//!   nothing.
//! - What was overwritten before it could be read leaves a gap record.
//! - When nothing more can be taken in, reading stops: the ring is the buffer.

mod place;
mod source;
mod told;

use std::sync::Arc;
use std::time::Duration;

use detect::kmsg::MAX_RECORD;
use detect::{Finding, KernelLog, KernelLogConfig, Record};
use health_event::{BootId, HealthEvent, ProcessingStrategy, checks, keys};
use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

use crate::config;
use crate::core::{Core, Saved};
use crate::detectors::Health;
use crate::own::{self, Gap, KERNEL_LOG};
use crate::spool::Position;
use place::{Lost, News, Place};
use source::{Read, Source};
use told::Told;

/// Records read before other tasks get their turn.
const TURN: u32 = 64;
/// Longest wait for a gap record while records keep coming.
const GAP_DELAY: Duration = Duration::from_secs(1);
/// Failures in a row after which the source is a fault of its own, and successes that end it.
const FAILURES: u32 = 3;
const SUCCESSES: u32 = 2;
/// How long a source that was never readable in this boot may take to become so.
const BOOTSTRAP: Duration = Duration::from_mins(15);
/// The check that says so.
const UNREADABLE: &str = "KernelLogUnreadable";
const RETRY: Duration = Duration::from_secs(1);
const RETRY_AT_MOST: Duration = Duration::from_secs(30);

/// The reader and what it knows.
struct Reader {
    core: Arc<Core>,
    place: Place,
    rules: KernelLog,
    findings: Vec<Finding>,
    gap_since: Option<tokio::time::Instant>,
    /// Records read and not yet counted.
    records: u64,
    /// What stands in for the real thing: shown in every event.
    stand_ins: Vec<String>,
    sight: Sight,
    told: Told,
}

/// Whether the source can be read, and whether that is a fault of its own.
#[derive(Debug)]
struct Sight {
    failures: u32,
    successes: u32,
    /// It was read in this boot.
    worked: bool,
    raised: bool,
}

impl Sight {
    /// The source can't be read; `waited`: for longer than it may take to become readable. Answers
    /// whether that makes it a fault.
    fn failed(&mut self, waited: bool) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.successes = 0;
        let raise = self.failures >= FAILURES && !self.raised && (self.worked || waited);
        self.raised |= raise;
        raise
    }

    /// It was read to its end. Answers whether that ends the fault.
    fn worked(&mut self) -> bool {
        self.failures = 0;
        self.worked = true;
        self.successes = self.successes.saturating_add(1);
        let recovered = self.raised && self.successes >= SUCCESSES;
        self.raised &= !recovered;
        recovered
    }
}

/// Reads for ever. Ends never; a source that fails is opened again, and after some failures is a
/// fault of its own.
pub async fn run(core: Arc<Core>, config: config::KernelLog, stand_ins: Vec<String>) {
    if config.source == config::Source::Off {
        return;
    }
    let saved = core.saved_position();
    let mut reader = Reader {
        place: Place::new(config.start, saved, config.first_start_lookback),
        rules: KernelLog::new(KernelLogConfig {
            accept_user_records: config.accept_user_records,
        }),
        findings: Vec::new(),
        gap_since: None,
        records: 0,
        stand_ins,
        told: Told::default(),
        sight: Sight {
            failures: 0,
            successes: 0,
            worked: matches!(saved, Saved::Here(_)),
            raised: core.is_raised(UNREADABLE),
        },
        core,
    };
    let started = tokio::time::Instant::now();
    loop {
        let opened = match &config.source {
            config::Source::Pipe(path) => Source::pipe(path),
            config::Source::Kmsg | config::Source::Off => Source::kmsg(),
        };
        let error = match opened {
            Ok(source) => reader.read(source).await,
            Err(error) => error,
        };
        let why = format!("kernel log can't be read: {error}");
        tracing::warn!(%error, "kernel log can't be read; tried again");
        reader.core.detector(KERNEL_LOG, Health::Blind(why.clone()));
        if reader.sight.failed(started.elapsed() > BOOTSTRAP) {
            let fault = own::state(UNREADABLE, false, &why);
            reader.core.state_own(fault);
        }
        let wait = RETRY
            .saturating_mul(reader.sight.failures)
            .min(RETRY_AT_MOST);
        tokio::time::sleep(wait).await;
    }
}

impl Reader {
    /// Reads until the source fails.
    async fn read(&mut self, mut source: Source) -> std::io::Error {
        let mut buffer = Box::new([0; MAX_RECORD]);
        let mut turn = 0;
        loop {
            match source.read(&mut buffer) {
                Ok(Read::Record(length)) => {
                    self.record(&buffer[..length]).await;
                    self.records += 1;
                    turn += 1;
                }
                Ok(Read::Nothing) => turn += 1,
                Ok(Read::End) => {
                    self.end().await;
                    turn = 0;
                    if let Err(error) = self.wait(&source).await {
                        return error;
                    }
                }
                Err(error) => return error,
            }
            if turn >= TURN {
                turn = 0;
                self.count_records();
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits for more; not for long while it has to be seen whether the source is well again.
    async fn wait(&self, source: &Source) -> std::io::Result<()> {
        if !self.sight.raised {
            return source.readable().await;
        }
        let more = tokio::time::timeout(RETRY, source.readable()).await;
        more.unwrap_or(Ok(()))
    }

    async fn record(&mut self, bytes: &[u8]) {
        let record = match Record::parse(bytes) {
            Ok(record) => record,
            Err(error) => {
                tracing::debug!(%error, code = error.code(), "kernel log record passed over");
                return;
            }
        };
        let (now, age) = (Timestamp::now(), age_of(&record));
        let news = self.place.observe(record.sequence, age);
        self.rules.observe(&record, &mut self.findings);
        if news == News::Old {
            self.findings.clear();
        }
        let at = now.saturating_sub(age).unwrap_or(now);
        let mut events: Vec<HealthEvent> = self
            .findings
            .drain(..)
            .map(|finding| self::event(finding, at, news, &self.stand_ins))
            .collect();
        name(&mut events, &self.core.identity().boot, record.sequence);
        if events.is_empty() {
            self.note_gap_time();
            if self
                .gap_since
                .is_some_and(|since| since.elapsed() >= GAP_DELAY)
            {
                self.tell_gap().await;
            }
            return;
        }
        let decoded_at = Timestamp::now();
        let lost = self.place.take_lost().map(|lost| self.lost(lost));
        let found = usize::from(lost.is_some());
        events.splice(0..0, lost);
        self.submit(&events).await;
        // A clock that is set back in between makes it nothing.
        let took = decoded_at.duration_since(now).max(SignedDuration::ZERO);
        let took = took.unsigned_abs();
        for event in &events[found..] {
            if event.check_name == checks::XID {
                let code = event.error_codes.first().map_or("", String::as_str);
                self.core.xids.count(code, took);
            }
            self.told.tell(event, record.sequence, decoded_at);
        }
    }

    /// The source was read to its end.
    async fn end(&mut self) {
        self.tell_gap().await;
        self.count_records();
        self.place.at_end();
        if let Some(position) = self.position() {
            self.core.note_position(position);
        }
        self.core.detector(KERNEL_LOG, Health::Starting);
        self.core.pass_done();
        if self.sight.worked() {
            let message = "the kernel log can be read again";
            tracing::info!(message);
            self.core.state_own(own::state(UNREADABLE, true, message));
        }
    }

    fn count_records(&mut self) {
        let records = std::mem::take(&mut self.records);
        self.core.count(|counters| counters.records_read += records);
    }

    fn note_gap_time(&mut self) {
        if self.place.has_lost() && self.gap_since.is_none() {
            self.gap_since = Some(tokio::time::Instant::now());
        }
    }

    async fn tell_gap(&mut self) {
        if let Some(lost) = self.place.take_lost() {
            let event = self.lost(lost);
            self.submit(&[event]).await;
        }
    }

    fn lost(&mut self, lost: Lost) -> HealthEvent {
        self.gap_since = None;
        self.core
            .count(|counters| counters.records_lost += lost.count);
        own::events_lost(&Gap {
            source: "kernel-log",
            count: lost.count,
            from: lost.from,
            to: lost.to,
            why: "the kernel overwrote them before they were read".into(),
        })
    }

    async fn submit(&self, events: &[HealthEvent]) {
        if !events.iter().any(|event| event.is_fatal) {
            self.core.disk().await;
        }
        while self
            .core
            .submit_own(events.to_vec(), self.position())
            .is_err()
        {
            self.core.room().await;
        }
    }

    fn position(&self) -> Option<Position> {
        let identity = self.core.identity();
        Some(Position {
            machine: identity.machine.clone(),
            boot: identity.boot.as_str().to_owned(),
            sequence: self.place.last()?,
        })
    }
}

/// What the reader knows beyond the detector.
fn event(finding: Finding, at: Timestamp, news: News, stand_ins: &[String]) -> HealthEvent {
    let mut event = finding.event;
    event.generated_at = Some(at);
    if news == News::Historical {
        event.strategy = ProcessingStrategy::StoreOnly;
        let mark = (keys::HISTORICAL.to_owned(), "true".to_owned());
        event.metadata.extend([mark]);
    }
    if !stand_ins.is_empty() {
        let origin = event.metadata.remove(keys::ORIGIN);
        let all: Vec<&str> = origin
            .as_deref()
            .into_iter()
            .chain(stand_ins.iter().map(String::as_str))
            .collect();
        event
            .metadata
            .insert(keys::ORIGIN.to_owned(), all.join(", "));
    }
    event
}

/// Gives the events of a record their ids: the same whenever it is read. Where the boot is not known
/// a record has no name.
fn name(events: &mut [HealthEvent], boot: &BootId, sequence: u64) {
    if boot.is_unknown() {
        return;
    }
    for (index, event) in events.iter_mut().enumerate() {
        let prefix = keys::KERNEL_RECORD_ID;
        event.id = format!("{prefix}{}:{sequence}:{index}", boot.as_str());
    }
}

/// How long ago a record was written, by the clock that the kernel stamps it with.
fn age_of(record: &Record<'_>) -> SignedDuration {
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = i32::try_from(now.tv_nsec).unwrap_or(0);
    let written = SignedDuration::try_from(record.monotonic).unwrap_or(SignedDuration::ZERO);
    let age = SignedDuration::new(now.tv_sec, nanoseconds).saturating_sub(written);
    age.max(SignedDuration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(worked: bool, raised: bool) -> Sight {
        Sight {
            failures: 0,
            successes: 0,
            worked,
            raised,
        }
    }

    #[test]
    fn a_source_is_a_fault_after_some_failures_if_it_worked_once_or_had_time_to_appear() {
        // Worked before, waited longer than the bootstrap time, and which of five failures raises.
        let table = [
            (false, false, None),
            (false, true, Some(FAILURES)),
            (true, false, Some(FAILURES)),
            (true, true, Some(FAILURES)),
        ];
        for (worked, waited, raises) in table {
            let mut sight = sight(worked, false);
            let raised: Vec<u32> = (1..=5).filter(|_| sight.failed(waited)).collect();
            assert_eq!(
                raised,
                Vec::from_iter(raises),
                "worked {worked}, waited {waited}"
            );
        }
    }

    #[test]
    fn a_source_that_never_worked_is_a_fault_as_soon_as_the_bootstrap_time_is_over() {
        let mut sight = sight(false, false);
        for _ in 0..10 {
            assert!(!sight.failed(false));
        }
        assert!(sight.failed(true));
        assert!(!sight.failed(true), "raised once");
    }

    #[test]
    fn the_fault_ends_after_some_successes_in_a_row_and_can_come_again() {
        let mut sight = sight(false, true);
        assert!(!sight.worked());
        assert!(!sight.failed(false), "still raised");
        assert!(!sight.worked(), "the failure in between counts");
        assert!(sight.worked(), "two in a row");
        assert!(!sight.worked(), "ended once");
        // It has worked in this boot now: no bootstrap time any more.
        assert!(!sight.failed(false));
        assert!(!sight.failed(false));
        assert!(sight.failed(false));
    }

    #[test]
    fn what_was_read_is_no_recovery_without_a_fault() {
        let mut sight = sight(true, false);
        assert!(!(0..5).any(|_| sight.worked()));
        // A success in between begins the count of failures anew.
        assert!(!sight.failed(true) && !sight.failed(true));
        sight.worked();
        assert!(!sight.failed(true) && !sight.failed(true));
        assert!(sight.failed(true));
    }
}
