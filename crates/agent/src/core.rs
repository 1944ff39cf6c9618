//! The middle of the agent: numbers every event, keeps it in memory until it is safe, folds our
//! own into the asserted set, and knows what is to be sent next.
//!
//! # Invariants
//! - Numbers rise; after a start they begin above any that a crash may have used unsaved.
//! - What is not on disk is at most [`MAX_UNSAFE_EVENTS`] events and [`MAX_UNSAFE_BYTES`] bytes;
//!   beyond that nothing is taken in: socket calls wait, the kernel log waits in its ring.
//! - Every lock is short and never held across an await.

mod outgoing;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use health_event::HealthEvent;
use tokio::sync::{Notify, watch};

use crate::detectors::{Detectors, Health};
use crate::ids::Identity;
use crate::own::{self, Gap};
use crate::spool::{Done, Position, Spool, SpoolError, Stored, Write};
use crate::xids::Xids;
use state::{State, Submission};

pub use outgoing::{MAX_UNSAFE_BYTES, MAX_UNSAFE_EVENTS, Next};
pub use state::{Counters, Saved, Snapshot};

/// Events of one sending at most.
const BATCH_EVENTS: usize = 256;
/// How often a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// No room: what is not safe yet must become so first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the spool can't be written and the controller can't be reached, and no more events fit into \
     memory"
)]
pub struct NoRoom;

/// The shared middle.
#[derive(Debug)]
pub struct Core {
    identity: Identity,
    state: Mutex<State>,
    spool: Spool,
    /// Something to send.
    pub send: Notify,
    /// Something to report.
    pub report: Notify,
    /// What is counted of XIDs.
    pub xids: Xids,
    /// Rises whenever events became safe.
    progress: watch::Sender<u64>,
    /// A write failed and has to be repeated.
    retry: Notify,
}

impl Core {
    /// From what the spool held.
    pub fn new(identity: Identity, spool: Spool, stored: Stored, detectors: Detectors) -> Self {
        Self {
            state: Mutex::new(State::new(identity.clone(), stored, detectors)),
            identity,
            spool,
            send: Notify::new(),
            report: Notify::new(),
            xids: Xids::default(),
            progress: watch::Sender::new(0),
            retry: Notify::new(),
        }
    }

    /// Who this agent is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Takes in events of our own detectors, with the position up to which they are complete.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was taken in; wait with [`Core::room`].
    pub fn submit_own(
        &self,
        events: Vec<HealthEvent>,
        position: Option<Position>,
    ) -> Result<(), NoRoom> {
        let submission = Submission {
            own: true,
            position,
            ..Submission::default()
        };
        self.submit(events, submission).map(drop)
    }

    /// Takes in events of the socket. Answers their numbers.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was taken in.
    pub fn submit_foreign(&self, events: Vec<HealthEvent>) -> Result<Vec<u64>, NoRoom> {
        self.submit(events, Submission::default())
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        self.wait(State::has_room).await;
    }

    /// Waits until the disk keeps up, but not on a disk that hangs: then events go on through
    /// memory, and their position is saved late, so that a crash tells them twice.
    pub async fn disk(&self) {
        if self.spool.keeps_up() || self.lock().is_disk_stuck() {
            return;
        }
        let keeps_up = self.wait(|_| self.spool.keeps_up());
        if tokio::time::timeout(RETRY, keeps_up).await.is_err() {
            self.lock().note_disk_stuck();
        }
    }

    /// Waits until all these events are on disk or the controller has them.
    pub async fn safe(&self, numbers: &[u64]) {
        self.wait(|state| state.are_safe(numbers)).await;
    }

    /// Waits until the controller has everything.
    pub async fn delivered(&self) {
        self.wait(State::is_delivered).await;
    }

    /// What is to be sent next, at most `limit` events.
    ///
    /// # Errors
    /// [`SpoolError`] if events are on disk only and can't be read.
    pub async fn next(&self, limit: usize) -> Result<Next, SpoolError> {
        let limit = limit.clamp(1, BATCH_EVENTS);
        let asked = self.lock().next(limit);
        let next = match asked {
            Ok(next) => next,
            Err(view) => {
                let read = self.spool.read(view.after, limit).await?;
                self.lock().merge(read, view, limit)
            }
        };
        if let Next::Batch(batch) = &next
            && let Some((last, _)) = batch.last()
        {
            self.spool.give_out(*last);
        }
        Ok(next)
    }

    /// The controller has everything up to this number.
    pub fn acknowledged(&self, through: u64, count: usize) {
        self.lock().acknowledge(through, count);
        self.spool.acknowledged(through);
        self.advance();
        self.try_settle();
    }

    /// The controller refuses this one event for good: it is put aside.
    ///
    /// # Errors
    /// [`SpoolError`] if it can't be put aside now: it stays the next to be sent, because without
    /// its gap record it would be gone.
    pub fn refused(
        &self,
        number: u64,
        event: HealthEvent,
        reason: String,
    ) -> Result<(), SpoolError> {
        self.spool.refuse(event, number, reason)?;
        self.lock().count(|counters| counters.refused += 1);
        self.acknowledged(number, 0);
        Ok(())
    }

    /// States something about ourselves; without room it is only logged.
    pub fn state_own(&self, event: HealthEvent) {
        let message = event.message.clone();
        if self.submit_own(vec![event], None).is_err() {
            tracing::warn!(
                message,
                "no room to send what the agent states about itself"
            );
        }
    }

    /// Takes in what the spool's thread tells.
    pub fn done(&self, done: Done) {
        match done {
            Done::Stored(numbers) => self.stored(&numbers),
            Done::Failed(error) => self.failed(&error),
            Done::Dropped(id, gap) => self.tell_gap(id, &gap),
            Done::Level(level) => self.lock().note_level(level),
        }
    }

    /// Makes a gap known; `id` is where the spool remembers it until then.
    pub fn tell_gap(&self, id: Option<i64>, gap: &Gap) {
        tracing::warn!(
            count = gap.count,
            source = gap.source,
            why = gap.why,
            "events lost"
        );
        let submission = Submission {
            own: true,
            told: id.into_iter().collect(),
            ..Submission::default()
        };
        if self
            .submit(vec![own::events_lost(gap)], submission)
            .is_err()
        {
            tracing::warn!("no room for the gap record; it is told at the next start");
        }
    }

    /// Runs for ever: repeats failed writes once a second, as long as there are any.
    pub async fn run_retries(self: Arc<Self>) {
        loop {
            self.retry.notified().await;
            tokio::time::sleep(RETRY).await;
            let write = self.lock().rewrite();
            if let Some(write) = write {
                self.write(write);
            }
        }
    }

    /// Notes how far the kernel log was read though nothing was found, for the next write.
    pub fn note_position(&self, position: Position) {
        self.lock().note_position(position);
    }

    /// Writes the noted position, at a graceful stop.
    pub fn flush(&self) {
        let write = self.lock().last_write();
        if let Err(error) = self.spool.write(write) {
            tracing::warn!(%error, "position not saved; matching lines since may be told again");
        }
    }

    /// Counts for `/metrics`.
    pub fn count(&self, change: impl FnOnce(&mut Counters)) {
        self.lock().count(change);
    }

    /// What is known of the position in the kernel log.
    pub fn saved_position(&self) -> Saved {
        self.lock().saved_position(&self.identity)
    }

    /// Whether a check of the agent's own health is asserted, also from before this process.
    pub fn is_raised(&self, check: &str) -> bool {
        self.lock().is_raised(check)
    }

    /// A detector's state changed by what it reads.
    pub fn detector(&self, name: &'static str, health: Health) {
        if self.lock().set_detector(name, health) {
            self.report.notify_one();
        }
    }

    /// The kernel log was read to its end for the first time.
    pub fn pass_done(&self) {
        self.lock().pass_done();
        self.try_settle();
    }

    /// Takes over the faults that the controller has open from this node's detectors, once.
    pub fn adopt(&self, events: &[HealthEvent]) {
        let write = self.lock().adopt(events);
        let Some(write) = write else { return };
        tracing::info!(
            count = events.len(),
            "took over what the controller has open"
        );
        self.write(write);
        self.try_settle();
        self.report.notify_one();
    }

    /// How things stand.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot()
    }

    /// The last events of the faults that the detectors assert.
    pub fn asserted(&self) -> Vec<HealthEvent> {
        self.lock().asserted()
    }

    fn submit(&self, events: Vec<HealthEvent>, submission: Submission) -> Result<Vec<u64>, NoRoom> {
        let (numbers, result) = {
            let mut state = self.lock();
            if !state.has_room() {
                return Err(NoRoom);
            }
            let (numbers, write) = state.take_in(events, submission, &self.identity);
            // Under the lock, so that the disk sees the numbers in order.
            (numbers, self.spool.write(write))
        };
        self.send.notify_one();
        if let Err(error) = result {
            self.failed(&error);
        }
        Ok(numbers)
    }

    fn write(&self, write: Write) {
        if let Err(error) = self.spool.write(write) {
            self.failed(&error);
        }
    }

    fn stored(&self, numbers: &[u64]) {
        let (recovered, again) = {
            let mut state = self.lock();
            (state.note_stored(numbers), state.wants_rewrite())
        };
        self.advance();
        if again {
            self.retry.notify_one();
        }
        if recovered {
            let message = "the spool can be written again";
            tracing::info!(message);
            self.state_own(own::state("SpoolUnwritable", true, message));
        }
    }

    fn failed(&self, error: &SpoolError) {
        let raise = self.lock().note_failed();
        tracing::warn!(%error, code = error.code(), "spool write failed; it is repeated");
        self.retry.notify_one();
        if raise {
            let message = format!("events can't be kept on disk: {error}; make room on it");
            self.state_own(own::state("SpoolUnwritable", false, &message));
        }
    }

    /// After the first full pass (and with the controller's faults taken over): closes what a
    /// reboot ended, once; the detectors settle when that is delivered.
    fn try_settle(&self) {
        let gone = self.lock().gone_after_reboot();
        if let Some(gone) = gone {
            if !gone.is_empty() && self.submit_own(gone, None).is_err() {
                // No room: tried again at the next acknowledgement.
                return;
            }
            self.lock().end_pass();
        }
        if self.lock().settle() {
            self.report.notify_one();
        }
    }

    async fn wait(&self, done: impl Fn(&State) -> bool) {
        let mut progress = self.progress.subscribe();
        while !done(&self.lock()) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    fn advance(&self) {
        self.progress.send_modify(|n| *n = n.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
