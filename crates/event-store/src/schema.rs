//! Tables, and how an older file is brought up to date.

/// One entry for each version: what brings the file from the version before to this one. Entries
/// are never changed once released.
pub(crate) const MIGRATIONS: [&str; 5] = [V1, V2, V3, V4, V5];

/// Events that opened nothing because their nodes had as many open faults as a node may have.
const V5: &str = "
CREATE TABLE unopened (
    node TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    check_name TEXT NOT NULL,
    events INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) WITHOUT ROWID;
";

/// Events of machines that their nodes are not: stored, without effect.
const V4: &str = "
CREATE TABLE held (
    node TEXT NOT NULL,
    machine TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (node, machine, seq)
) WITHOUT ROWID;
";

/// What senders had beyond their shares of the store, and went.
const V3: &str = "
CREATE TABLE shed (
    sender TEXT PRIMARY KEY,
    events INTEGER NOT NULL,
    from_seq INTEGER NOT NULL,
    to_seq INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) WITHOUT ROWID;
";

/// By what machines are forgotten (those not seen for long that nothing is remembered of), and by
/// what each decision reads: nodes that were ill often have many incidents that are over.
const V2: &str = "
CREATE INDEX incidents_open_node ON incidents (node) WHERE closed_at IS NULL;
CREATE INDEX machines_seen ON machines (seen_at);
CREATE INDEX scopes_machine ON scopes (machine);
";

/// `events.id` is indexed alone: ids are ULIDs mostly, so that new ones stand beside each other.
/// No index on faults is UNIQUE over the key: identity is the fold's to decide, and an event must
/// never fail for it.
const V1: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    event_seq INTEGER NOT NULL,
    transition_seq INTEGER NOT NULL,
    fencing INTEGER NOT NULL
);
INSERT INTO counters VALUES (1, 0, 0, 0);
INSERT INTO meta VALUES ('store_id', lower(hex(randomblob(16))));

CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    sender TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    node TEXT NOT NULL,
    machine TEXT NOT NULL,
    boot TEXT NOT NULL,
    generated_at INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    strategy INTEGER NOT NULL,
    healthy INTEGER NOT NULL,
    fatal INTEGER NOT NULL,
    agent TEXT NOT NULL,
    check_name TEXT NOT NULL,
    component TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX events_id ON events (id);
CREATE INDEX events_node ON events (node);
CREATE TABLE repeat_ids (
    id TEXT NOT NULL,
    sender TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    received_at INTEGER NOT NULL
);
CREATE INDEX repeat_ids_id ON repeat_ids (id);

CREATE TABLE scopes (
    scope INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    node TEXT,
    agent TEXT NOT NULL,
    component TEXT NOT NULL,
    check_name TEXT NOT NULL,
    machine TEXT NOT NULL,
    UNIQUE (subject, check_name, agent, component)
);
CREATE TABLE faults (
    fault INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    node TEXT,
    space INTEGER NOT NULL,
    device_kind TEXT NOT NULL,
    device TEXT NOT NULL,
    code TEXT NOT NULL,
    open INTEGER NOT NULL,
    asserted INTEGER NOT NULL,
    incident TEXT,
    held_until INTEGER,
    last_at INTEGER NOT NULL,
    state BLOB NOT NULL,
    facts BLOB NOT NULL,
    event BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX faults_scope ON faults (scope);
CREATE INDEX faults_open ON faults (node) WHERE open = 1 OR asserted = 1;
CREATE INDEX faults_incident ON faults (incident) WHERE incident IS NOT NULL;
CREATE INDEX faults_held ON faults (held_until) WHERE held_until IS NOT NULL;
CREATE INDEX faults_closed ON faults (last_at) WHERE open = 0 AND asserted = 0;
CREATE TABLE clears (
    scope INTEGER NOT NULL,
    key BLOB NOT NULL,
    received_at INTEGER NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX clears_received ON clears (received_at);

CREATE TABLE machines (
    machine TEXT PRIMARY KEY,
    boots TEXT NOT NULL,
    spool TEXT NOT NULL,
    holds TEXT NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE spools (
    node TEXT NOT NULL,
    spool TEXT NOT NULL,
    boot TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (node, spool)
) WITHOUT ROWID;

CREATE TABLE incidents (
    id TEXT PRIMARY KEY,
    node TEXT NOT NULL,
    node_uid TEXT NOT NULL,
    machine TEXT NOT NULL,
    version INTEGER NOT NULL,
    opened_seq INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,
    closed_at INTEGER,
    state TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX incidents_open ON incidents (node_uid) WHERE closed_at IS NULL;
CREATE INDEX incidents_node ON incidents (node, id);
CREATE INDEX incidents_closed ON incidents (closed_at) WHERE closed_at IS NOT NULL;
CREATE TABLE transitions (
    seq INTEGER PRIMARY KEY,
    incident TEXT NOT NULL,
    node TEXT NOT NULL,
    version INTEGER NOT NULL,
    at INTEGER NOT NULL,
    module TEXT NOT NULL,
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    cause TEXT NOT NULL
);
CREATE INDEX transitions_incident ON transitions (incident);
CREATE INDEX transitions_node ON transitions (node);

CREATE TABLE consumers (
    name TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    moved_at INTEGER NOT NULL,
    enabled INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE gaps (
    consumer TEXT NOT NULL,
    from_seq INTEGER NOT NULL,
    to_seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (consumer, from_seq)
) WITHOUT ROWID;
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
";

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::read::{OPEN_INCIDENTS, OPEN_INCIDENTS_OF};

    /// What a start reads of a store with many incidents that are over.
    #[test]
    fn open_incidents_are_read_by_an_index_that_holds_no_others() {
        let connection = Connection::open_in_memory().unwrap();
        for step in MIGRATIONS {
            connection.execute_batch(step).unwrap();
        }
        for (sql, node) in [(OPEN_INCIDENTS, None), (OPEN_INCIDENTS_OF, Some("n"))] {
            let mut plan = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let steps = plan.query_map(rusqlite::params_from_iter(node), |row| row.get(3));
            let steps: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
            let by = &steps[0];
            assert!(
                by.contains("USING INDEX incidents_open"),
                "{sql}: {steps:?}"
            );
        }
    }
}
