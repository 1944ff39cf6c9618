//! The attempts that were made on a machine, in whatever incident: they count for the next one.

use decide::remediation::PastAttempt;
use event_store::{EventStore, ReadError, WriteError};
use health_event::incident::{Attempt, Rung};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Before a machine's id.
const PREFIX: &str = "remediation/attempts/";
/// Attempts that are kept of a machine: more than a window can hold, with 16 of each rung at most.
const MOST: usize = 64;

/// One, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredAttempt {
    /// Name of its rung.
    rung: String,
    /// When it was ordered.
    at: Timestamp,
    /// Name of its object.
    object: String,
}

/// The attempts of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Attempts(Vec<StoredAttempt>);

fn key(machine: &str) -> String {
    format!("{PREFIX}{machine}")
}

impl Attempts {
    /// Those that the store knows.
    pub(super) fn load(store: &EventStore, machine: &str) -> Result<Self, ReadError> {
        let bytes = store.state_get(&key(machine))?;
        // What can't be read was not written by this version: the objects tell.
        let known = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(Self(known.unwrap_or_default()))
    }

    /// With an attempt that is known by its object alone.
    pub(super) fn add_found(&mut self, rung: Rung, at: Timestamp, object: &str) {
        if !self.0.iter().any(|known| known.object == object) {
            self.0.push(StoredAttempt {
                rung: rung.as_str().to_owned(),
                at,
                object: object.to_owned(),
            });
        }
    }

    /// Without that of an object for which nothing was sent; answers whether it was among them.
    pub(super) fn take_back(&mut self, object: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|known| known.object != object);
        self.0.len() < before
    }

    /// As decisions see them.
    pub(super) fn past(&self) -> Vec<PastAttempt> {
        let past = |known: &StoredAttempt| {
            let rung = Rung::from_name(&known.rung)?;
            Some(PastAttempt { rung, at: known.at })
        };
        self.0.iter().filter_map(past).collect()
    }

    /// What is stored together with the order of one more: those that count, the newest.
    pub(super) fn put(
        mut self,
        machine: &str,
        attempt: &Attempt,
        window: SignedDuration,
    ) -> (String, Vec<u8>) {
        self.add_found(attempt.rung, attempt.requested_at, &attempt.object);
        let since = since(attempt.requested_at, window);
        self.0.retain(|known| known.at > since);
        self.0.sort_by_key(|known| known.at);
        let too_many = self.0.len().saturating_sub(MOST);
        self.0.drain(..too_many);
        self.stored(machine)
    }

    /// Key and value under which they are stored.
    pub(super) fn stored(&self, machine: &str) -> (String, Vec<u8>) {
        let bytes = serde_json::to_vec(&self.0).expect("names and times always render");
        (key(machine), bytes)
    }
}

fn since(now: Timestamp, window: SignedDuration) -> Timestamp {
    now.checked_sub(window).unwrap_or(Timestamp::MIN)
}

/// Forgets machines of which no attempt counts any more.
pub(super) async fn sweep(
    store: &EventStore,
    window: SignedDuration,
    fencing: u64,
    now: Timestamp,
) -> Result<(), SweepError> {
    let since = since(now, window);
    for key in store.state_keys(PREFIX)? {
        let machine = key.strip_prefix(PREFIX).unwrap_or_default();
        let known = Attempts::load(store, machine)?;
        if known.0.iter().all(|known| known.at <= since) {
            store.state_delete(&key, fencing).await?;
        }
    }
    Ok(())
}

/// Why old attempts are still there.
#[derive(Debug, thiserror::Error)]
pub(super) enum SweepError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

#[cfg(test)]
mod tests {
    use health_event::BootId;
    use health_event::incident::Effect;

    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn attempt(object: &str, minutes: i64) -> Attempt {
        Attempt {
            number: 1,
            rung: Rung::Reboot,
            action: "RESTART_BM".to_owned(),
            object: object.to_owned(),
            force: false,
            boot_before: BootId::new("b1"),
            requested_at: at(minutes),
            deadline: at(minutes + 35),
            not_begun_before: 0,
            effect: Effect::Pending,
        }
    }

    #[test]
    fn attempts_are_kept_for_their_window_each_once_and_no_more_than_may_be() {
        let hour = SignedDuration::from_hours(1);
        let mut known = Attempts::default();
        known.add_found(Rung::Reboot, at(0), "a");
        known.add_found(Rung::Reboot, at(50), "b");
        known.add_found(Rung::Reset, at(50), "b");
        assert_eq!(known.past().len(), 2);
        let (key, bytes) = known.put("m", &attempt("c", 70), hour);
        assert_eq!(key, "remediation/attempts/m");
        let left: Vec<StoredAttempt> = serde_json::from_slice(&bytes).unwrap();
        let names: Vec<&str> = left.iter().map(|known| known.object.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        let mut many = Attempts::default();
        for n in 0..200 {
            many.add_found(Rung::Reboot, at(n), &n.to_string());
        }
        let (_, bytes) = many.put("m", &attempt("last", 200), hour * 24);
        let left: Vec<StoredAttempt> = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((left.len(), left[MOST - 1].object.as_str()), (MOST, "last"));
    }

    #[tokio::test]
    async fn machines_of_which_nothing_counts_any_more_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = EventStore::open(folder.path(), event_store::Options::default()).unwrap();
        store.set_fencing(1).await.unwrap();
        let hour = SignedDuration::from_hours(1);
        for (machine, minutes) in [("old", 0), ("new", 59)] {
            let (key, bytes) = Attempts::default().put(machine, &attempt("o", minutes), hour);
            store.state_put(&key, bytes, 1).await.unwrap();
        }
        store
            .state_put(&key("odd"), b"?".to_vec(), 1)
            .await
            .unwrap();
        sweep(&store, hour, 1, at(60)).await.unwrap();
        assert_eq!(store.state_keys(PREFIX).unwrap(), [key("new")]);
        let known = Attempts::load(&store, "new").unwrap();
        assert_eq!(known.past().len(), 1);
    }
}
