//! The attempts that were made on a machine, in whatever incident: they count for the next one.

use decide::remediation::{PastAttempt, is_named_for};
use event_store::{EventStore, ReadError, WriteError};
use health_event::incident::{Attempt, Incident, Rung};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Before a machine's id.
const PREFIX: &str = "remediation/attempts/";
/// Attempts that are kept of a machine: more than a window and an incident can hold, with 16 of each rung at
/// most.
const MOST: usize = 128;

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

    /// As decisions about an incident see them.
    pub(super) fn past(&self, incident: &Incident) -> Vec<PastAttempt> {
        let past = |known: &StoredAttempt| {
            let rung = Rung::from_name(&known.rung)?;
            Some(PastAttempt {
                rung,
                at: known.at,
                of_incident: is_named_for(incident, &known.object),
            })
        };
        self.0.iter().filter_map(past).collect()
    }

    /// What is stored together with the order of one more in an incident: those that count, the newest.
    pub(super) fn put(
        mut self,
        incident: &Incident,
        attempt: &Attempt,
        window: SignedDuration,
    ) -> (String, Vec<u8>) {
        self.add_found(attempt.rung, attempt.requested_at, &attempt.object);
        let since = since(attempt.requested_at, window);
        self.0
            .retain(|known| known.at > since || is_named_for(incident, &known.object));
        self.0.sort_by_key(|known| known.at);
        let too_many = self.0.len().saturating_sub(MOST);
        self.0.drain(..too_many);
        self.stored(&incident.machine)
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

/// Forgets machines of which no attempt counts any more: those of an open incident do as long as it is open.
pub(super) async fn sweep(
    store: &EventStore,
    window: SignedDuration,
    fencing: u64,
    now: Timestamp,
) -> Result<(), SweepError> {
    let since = since(now, window);
    let open = store.open_incidents()?;
    for key in store.state_keys(PREFIX)? {
        let machine = key.strip_prefix(PREFIX).unwrap_or_default();
        let known = Attempts::load(store, machine)?;
        let of_open = |known: &StoredAttempt| {
            let mut of_machine = open.iter().filter(|incident| incident.machine == machine);
            of_machine.any(|incident| is_named_for(incident, &known.object))
        };
        let counts = |known: &StoredAttempt| known.at > since || of_open(known);
        if !known.0.iter().any(counts) {
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
    use decide::remediation::object_name;
    use event_store::Transition;
    use health_event::incident::{Effect, IncidentId, Marks, QuarantineStatus};
    use health_event::{BootId, NodeName};

    use super::*;

    fn incident(machine: &str) -> Incident {
        Incident {
            id: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
            node: NodeName::new(machine).unwrap(),
            node_uid: "uid".to_owned(),
            machine: machine.to_owned(),
            version: 1,
            opened_seq: 0,
            opened_at: at(0),
            opened_boot: BootId::new("b1"),
            closed_at: None,
            quarantine: QuarantineStatus::Quarantined,
            since: at(0),
            faults: Vec::new(),
            marks: Marks::default(),
            pool: "gpu".to_owned(),
            marks_observed: true,
            marks_before: None,
            drain: None,
            repair: None,
            validation: None,
            needs_operator: None,
            held_by: None,
            faults_unknown: false,
            reasserted: Vec::new(),
            put_back: Vec::new(),
        }
    }

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
            seen_before: None,
            effect: Effect::Pending,
        }
    }

    #[test]
    fn attempts_are_kept_for_their_window_each_once_and_no_more_than_may_be() {
        let hour = SignedDuration::from_hours(1);
        let of = incident("m");
        let mut known = Attempts::default();
        known.add_found(Rung::Reboot, at(0), "a");
        known.add_found(Rung::Reboot, at(50), "b");
        known.add_found(Rung::Reset, at(50), "b");
        assert_eq!(known.past(&of).len(), 2);
        // Those of the incident count as long as it is open.
        let own = object_name(&of, 1);
        known.add_found(Rung::Reboot, at(1), &own);
        let (key, bytes) = known.put(&of, &attempt("c", 70), hour);
        assert_eq!(key, "remediation/attempts/m");
        let left: Vec<StoredAttempt> = serde_json::from_slice(&bytes).unwrap();
        let names: Vec<&str> = left.iter().map(|known| known.object.as_str()).collect();
        assert_eq!(names, [own.as_str(), "b", "c"]);
        let past = Attempts(left).past(&of).into_iter();
        let of_incident: Vec<bool> = past.map(|past| past.of_incident).collect();
        assert_eq!(of_incident, [true, false, false]);
        let mut many = Attempts::default();
        for n in 0..200 {
            many.add_found(Rung::Reboot, at(n), &n.to_string());
        }
        let (_, bytes) = many.put(&of, &attempt("last", 200), hour * 24);
        let left: Vec<StoredAttempt> = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((left.len(), left[MOST - 1].object.as_str()), (MOST, "last"));
    }

    #[tokio::test]
    async fn machines_of_which_nothing_counts_any_more_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = EventStore::open(folder.path(), event_store::Options::default()).unwrap();
        store.set_fencing(1).await.unwrap();
        let hour = SignedDuration::from_hours(1);
        let open = incident("open");
        let own = object_name(&open, 1);
        for (machine, object, minutes) in [("old", "o", 0), ("new", "o", 59), ("open", &own, 0)] {
            let of = incident(machine);
            let (key, bytes) = Attempts::default().put(&of, &attempt(object, minutes), hour);
            store.state_put(&key, bytes, 1).await.unwrap();
        }
        let opened = Transition {
            incident: open.clone(),
            expected_version: None,
            fencing: 1,
            module: "quarantine".to_owned(),
            from: String::new(),
            to: "Quarantined".to_owned(),
            cause: "{}".to_owned(),
            at: at(0),
            state_puts: Vec::new(),
            faults_joined: Vec::new(),
            holds: None,
        };
        store.transition(opened).await.unwrap();
        store
            .state_put(&key("odd"), b"?".to_vec(), 1)
            .await
            .unwrap();
        sweep(&store, hour, 1, at(60)).await.unwrap();
        let kept = store.state_keys(PREFIX).unwrap();
        assert_eq!(kept, [key("new"), key("open")]);
        let known = Attempts::load(&store, "open").unwrap();
        assert!(known.past(&open)[0].of_incident);
    }
}
