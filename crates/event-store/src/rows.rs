//! From rows to what readers get.

use std::borrow::Cow;

use health_event::device::DeviceKey;
use health_event::fault::FaultKey;
use health_event::incident::{Incident, IncidentId};
use health_event::{BootId, FaultId, NodeName, ProcessingStrategy, Scope, Sender, Subject};
use rusqlite::Row;

use crate::codec::from_nanos;
use crate::encode;
use crate::facts::Facts;
use crate::records::{self, subject_from};
use crate::types::{Consumer, Gap, Shed, StoredEvent, StoredFault, StoredTransition, Unopened};

pub(crate) const FAULT: &str =
    "SELECT s.subject, s.agent, s.component, s.check_name, f.space, f.device_kind,
    f.device, f.code, f.asserted, f.incident, f.fault, f.state, f.facts, f.event, f.body
    FROM faults f JOIN scopes s USING (scope)";

/// The cluster where else a node's name stands.
const CLUSTER: &str = "cluster/";

/// The condition of the index of open faults, to the letter.
pub(crate) const OPEN: &str = "(f.open = 1 OR f.asserted = 1) AND f.open = 1";

/// A consumer with the gap that begins right after its position.
pub(crate) const CONSUMER: &str =
    "SELECT c.name, c.seq, c.moved_at, c.enabled, g.from_seq, g.to_seq, g.at
    FROM consumers c LEFT JOIN gaps g ON g.consumer = c.name AND g.from_seq = c.seq + 1";

pub(crate) fn consumer(row: &Row<'_>) -> rusqlite::Result<Consumer> {
    let from: Option<u64> = row.get(4)?;
    let gap = match from {
        Some(from) => {
            let to: u64 = row.get(5)?;
            Some(Gap {
                from,
                to,
                count: to + 1 - from,
                at: from_nanos(row.get(6)?),
            })
        }
        None => None,
    };
    Ok(Consumer {
        name: row.get(0)?,
        seq: row.get(1)?,
        moved_at: from_nanos(row.get(2)?),
        enabled: row.get(3)?,
        gap,
    })
}

/// What consumers did not see, the newest first.
pub(crate) const GAPS: &str =
    "SELECT consumer, from_seq, to_seq, at FROM gaps ORDER BY at DESC LIMIT ?1";

pub(crate) fn gap(row: &Row<'_>) -> rusqlite::Result<(String, Gap)> {
    let (from, to): (u64, u64) = (row.get(1)?, row.get(2)?);
    let gap = Gap {
        from,
        to,
        count: to + 1 - from,
        at: from_nanos(row.get(3)?),
    };
    Ok((row.get(0)?, gap))
}

/// Whose events went beyond their senders' shares, the newest first.
pub(crate) const SHED: &str =
    "SELECT sender, events, from_seq, to_seq, last_at FROM shed ORDER BY last_at DESC LIMIT ?1";

pub(crate) fn shed(row: &Row<'_>) -> rusqlite::Result<Shed> {
    Ok(Shed {
        sender: Sender::from_stored(row.get_ref(0)?.as_str()?),
        events: row.get(1)?,
        from: row.get(2)?,
        to: row.get(3)?,
        at: from_nanos(row.get(4)?),
    })
}

pub(crate) const UNOPENED: &str =
    "SELECT node, agent, check_name, events, first_at, last_at FROM unopened
     ORDER BY last_at DESC LIMIT ?1";

pub(crate) fn unopened(row: &Row<'_>) -> rusqlite::Result<Unopened> {
    Ok(Unopened {
        node: node(row, 0)?,
        agent: row.get(1)?,
        check_name: row.get(2)?,
        events: row.get(3)?,
        since: from_nanos(row.get(4)?),
        at: from_nanos(row.get(5)?),
    })
}

fn damaged(column: usize, what: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        column,
        rusqlite::types::Type::Text,
        format!("stored {what} is damaged").into(),
    )
}

pub(crate) fn node(row: &Row<'_>, column: usize) -> rusqlite::Result<NodeName> {
    let text = row.get_ref(column)?.as_str()?;
    NodeName::new(text).map_err(|_| damaged(column, "node name"))
}

/// A subject in the column of an event's node: the name of a node stands alone, and no name of a
/// node has the stroke that the others have.
pub(crate) fn subject_column(subject: &Subject) -> Cow<'_, str> {
    match subject {
        Subject::Node(name) => Cow::Borrowed(name.as_str()),
        Subject::Pool(_) => Cow::Owned(subject.to_string()),
        Subject::Cluster => Cow::Borrowed(CLUSTER),
    }
}

fn event_subject(row: &Row<'_>, column: usize) -> rusqlite::Result<Subject> {
    let text = row.get_ref(column)?.as_str()?;
    match text.strip_prefix("pool/") {
        Some(pool) => Ok(Subject::Pool(pool.to_owned())),
        None if text == CLUSTER => Ok(Subject::Cluster),
        None => node(row, column).map(Subject::Node),
    }
}

pub(crate) fn incident(row: &Row<'_>) -> rusqlite::Result<Incident> {
    Ok(records::decode_incident(row.get_ref(0)?.as_str()?)?)
}

pub(crate) fn transition(row: &Row<'_>) -> rusqlite::Result<StoredTransition> {
    let id = IncidentId::new(row.get_ref(1)?.as_str()?);
    Ok(StoredTransition {
        seq: row.get(0)?,
        incident: id.ok_or_else(|| damaged(1, "incident id"))?,
        node: node(row, 2)?,
        version: row.get(3)?,
        at: from_nanos(row.get(4)?),
        module: row.get(5)?,
        from: row.get(6)?,
        to: row.get(7)?,
        cause: row.get(8)?,
    })
}

pub(crate) fn event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent {
        seq: row.get(0)?,
        sender: Sender::from_stored(row.get_ref(1)?.as_str()?),
        id: row.get(2)?,
        subject: event_subject(row, 3)?,
        machine: row.get(4)?,
        boot: BootId::new(row.get_ref(5)?.as_str()?),
        generated_at: from_nanos(row.get(6)?),
        received_at: from_nanos(row.get(7)?),
        strategy: ProcessingStrategy::from_number(row.get(8)?),
        healthy: row.get(9)?,
        fatal: row.get(10)?,
        agent: row.get(11)?,
        check_name: row.get(12)?,
        component_class: row.get(13)?,
        body: row.get(14)?,
    })
}

/// From the first eight columns of [`FAULT`].
pub(crate) fn fault_id(row: &Row<'_>) -> rusqlite::Result<FaultId> {
    let subject = subject_from(row.get_ref(0)?.as_str()?);
    Ok(FaultId {
        scope: Scope {
            subject: subject.ok_or_else(|| damaged(0, "subject"))?,
            agent: row.get(1)?,
            component_class: row.get(2)?,
            check_name: row.get(3)?,
        },
        key: FaultKey {
            space: ProcessingStrategy::from_number(row.get(4)?),
            device: DeviceKey::from_stored(row.get_ref(5)?.as_str()?, row.get_ref(6)?.as_str()?),
            code: row.get(7)?,
        },
    })
}

pub(crate) fn fault(row: &Row<'_>) -> rusqlite::Result<StoredFault> {
    let incident: Option<String> = row.get(9)?;
    let state = encode::decode_fault(row.get_ref(11)?.as_blob()?, row.get(10)?)?;
    let facts = Facts::decode(row.get_ref(12)?.as_blob()?)?;
    let held_until = state.closes_at();
    Ok(StoredFault {
        id: fault_id(row)?,
        boot: facts.boot(),
        order: facts.order().cloned(),
        machine: facts.machine,
        device: state.device,
        open: state.open,
        fatal: state.fatal,
        action: state.action,
        first_seq: facts.first_seq,
        last_seq: facts.last_seq,
        opened_seq: facts.opened_seq,
        opened_at: facts.opened_at,
        count: facts.count,
        repeats: facts.repeats,
        first_at: facts.first_at,
        last_at: facts.last_at,
        asserted_by_agent: row.get(8)?,
        sent: facts.sent,
        sender: facts.sender,
        event: encode::decode_event(row.get_ref(13)?.as_blob()?)?,
        body: row.get(14)?,
        incident: incident.and_then(|id| IncidentId::new(&id)),
        closed_at: facts.closed_at,
        cause: facts.cause,
        held_until,
    })
}
