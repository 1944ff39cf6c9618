//! What waits for the writer: bounded, and what is urgent goes first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use health_event::incident::Hold;
use health_event::{BootId, CloseCause, FaultId, NodeName};
use jiff::Timestamp;

use crate::error::WriteError;
use crate::reply::Answer;
use crate::types::{Appended, Batch, Pruned, Transition};

/// Batches that may wait. With 64 callers of one event each this is never reached.
const BATCHES_MAX: usize = 4_096;
/// Bytes that may wait; sixteen of the largest batches that the wire accepts (4 MiB).
const BYTES_MAX: usize = 64 << 20;
/// Other writes that may wait: about one for each of 10,000 nodes.
const OTHERS_MAX: usize = 16_384;
/// Events that go into one transaction: bounds the wait of an urgent write (some 30 ms).
const GROUP_EVENTS: usize = 1_000;

/// One write and where its answer goes.
pub(crate) enum Job {
    Append(Batch, Answer<Vec<Appended>>),
    Transition(Box<Transition>, Answer<u64>),
    StatePut {
        key: String,
        value: Vec<u8>,
        fencing: u64,
        answer: Answer<()>,
    },
    HoldsPut {
        machine: String,
        holds: Vec<Hold>,
        fencing: u64,
        at: Timestamp,
        answer: Answer<()>,
    },
    CloseFault {
        id: Box<FaultId>,
        cause: CloseCause,
        at: Timestamp,
        answer: Answer<bool>,
    },
    CloseGone {
        faults: Vec<(FaultId, u64)>,
        cause: CloseCause,
        fencing: u64,
        at: Timestamp,
        answer: Answer<usize>,
    },
    Forget {
        node: Option<NodeName>,
        keys: Vec<String>,
        fencing: u64,
        answer: Answer<()>,
    },
    SetFencing(u64, Answer<()>),
    ConsumerAdvance {
        name: String,
        seq: u64,
        at: Timestamp,
        answer: Answer<()>,
    },
    ConsumerEnable {
        name: String,
        enabled: bool,
        at: Timestamp,
        answer: Answer<()>,
    },
    ObserveBoot {
        machine: String,
        boot: BootId,
        spool: String,
        at: Timestamp,
        answer: Answer<bool>,
    },
    ReleaseFlapping(Timestamp, Answer<usize>),
    Prune(Timestamp, Answer<Pruned>),
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<(usize, Batch, Answer<Vec<Appended>>)>,
    event_bytes: usize,
    others: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

impl Queue {
    pub(crate) fn push_events(&self, batch: Batch, answer: Answer<Vec<Appended>>) {
        let bytes = batch.iter().map(|e| e.body.len() + 1_024).sum();
        let mut waiting = self.lock();
        let full = waiting.events.len() >= BATCHES_MAX || waiting.event_bytes + bytes > BYTES_MAX;
        // A batch larger than the bound still goes when nothing else waits.
        if waiting.closed || (full && !waiting.events.is_empty()) {
            let error = refusal(waiting.closed);
            drop(waiting);
            drop(answer.send(Err(error)));
            return;
        }
        waiting.event_bytes += bytes;
        waiting.events.push_back((bytes, batch, answer));
        drop(waiting);
        self.wake.notify_one();
    }

    pub(crate) fn push(&self, job: Job) {
        let mut waiting = self.lock();
        if waiting.closed || waiting.others.len() >= OTHERS_MAX {
            let error = refusal(waiting.closed);
            drop(waiting);
            job.refuse(error);
            return;
        }
        waiting.others.push_back(job);
        drop(waiting);
        self.wake.notify_one();
    }

    /// All that waits, up to a bound of events; nothing after `patience`; `None` once closed and
    /// empty.
    pub(crate) fn take(&self, patience: Option<Duration>) -> Option<Vec<Job>> {
        let mut waiting = self.lock();
        while waiting.events.is_empty() && waiting.others.is_empty() {
            if waiting.closed {
                return None;
            }
            let Some(patience) = patience else {
                waiting = self
                    .wake
                    .wait(waiting)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (guard, timeout) = self
                .wake
                .wait_timeout(waiting, patience)
                .unwrap_or_else(PoisonError::into_inner);
            waiting = guard;
            if timeout.timed_out() {
                break;
            }
        }
        let mut jobs: Vec<Job> = waiting.others.drain(..).collect();
        let mut events = 0;
        while events < GROUP_EVENTS {
            let Some((bytes, batch, answer)) = waiting.events.pop_front() else {
                break;
            };
            waiting.event_bytes -= bytes;
            events += batch.len();
            jobs.push(Job::Append(batch, answer));
        }
        Some(jobs)
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Closes and drops what waits: its callers are told that the store is closed.
    pub(crate) fn abandon(&self) {
        let mut waiting = self.lock();
        let dropped = std::mem::take(&mut *waiting);
        waiting.closed = true;
        drop(waiting);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal(closed: bool) -> WriteError {
    if closed {
        WriteError::Closed
    } else {
        WriteError::Busy
    }
}

impl Job {
    /// Answers with an error. The caller may have gone away, which is its right.
    pub(crate) fn refuse(self, error: WriteError) {
        match self {
            Self::Append(_, answer) => drop(answer.send(Err(error))),
            Self::Transition(_, answer) => drop(answer.send(Err(error))),
            Self::StatePut { answer, .. }
            | Self::HoldsPut { answer, .. }
            | Self::Forget { answer, .. }
            | Self::ConsumerAdvance { answer, .. }
            | Self::ConsumerEnable { answer, .. }
            | Self::SetFencing(_, answer) => drop(answer.send(Err(error))),
            Self::CloseFault { answer, .. } | Self::ObserveBoot { answer, .. } => {
                drop(answer.send(Err(error)));
            }
            Self::CloseGone { answer, .. } | Self::ReleaseFlapping(_, answer) => {
                drop(answer.send(Err(error)));
            }
            Self::Prune(_, answer) => drop(answer.send(Err(error))),
        }
    }
}
