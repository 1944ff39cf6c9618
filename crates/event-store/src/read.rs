//! Reads. Each uses a connection of its own and sees one whole commit.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use health_event::incident::{Incident, IncidentId};
use health_event::{BootId, FaultId, NodeName, ProcessingStrategy, Subject};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, Row, params};

use crate::codec::from_nanos;
use crate::error::ReadError;
use crate::facts::Facts;
use crate::footing::free_bytes;
use crate::ledger::boots_from;
use crate::records;
use crate::retention::live_bytes;
use crate::rows::{
    CONSUMER, FAULT, GAPS, OPEN, SHED, UNOPENED, consumer, event, fault, fault_id, gap, incident,
    node, shed, transition, unopened,
};
use crate::startup::keep_prepared;
use crate::store::EventStore;
use crate::types::{
    AssertedFault, Consumer, IncidentFilter, LastOrder, Machine, Stats, StoredEvent, StoredFault,
    StoredTransition, TransitionsOf, Unopened,
};

/// Read connections that are kept; more are opened under load and closed after use.
const KEPT: usize = 4;
/// Pages that each keeps, in KiB.
const CACHE_KIB: i64 = 512;

/// Longest list that is kept in memory after it was read.
const FEW: usize = 16;

/// Connections for reading.
pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            idle: Mutex::default(),
        }
    }

    fn with<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, ReadError> {
        let failed = |source| ReadError::Sqlite { what, source };
        let connection = match self.lock().pop() {
            Some(connection) => connection,
            None => self.connect().map_err(failed)?,
        };
        // A connection that failed is closed: the next read starts afresh.
        let answer = read(&connection).map_err(failed)?;
        let mut idle = self.lock();
        if idle.len() < KEPT {
            idle.push(connection);
        }
        Ok(answer)
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        keep_prepared(&connection)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        Ok(connection)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The plus keeps the order from being read off the key, which walks over all that are over.
pub(crate) const OPEN_INCIDENTS: &str =
    "SELECT state FROM incidents WHERE closed_at IS NULL ORDER BY +id";
pub(crate) const OPEN_INCIDENTS_OF: &str =
    "SELECT state FROM incidents WHERE node = ?1 AND closed_at IS NULL ORDER BY id";

impl EventStore {
    /// Open faults of a node that may have effects, oldest first.
    ///
    /// # Errors
    /// [`ReadError`]; so for all reads.
    pub fn open_faults(&self, node: &NodeName) -> Result<Arc<[StoredFault]>, ReadError> {
        let few = |faults: &Arc<[StoredFault]>| faults.len() <= FEW;
        self.shared().open_faults.get(node, few, || {
            let acts = ProcessingStrategy::ExecuteRemediation.number();
            let faults = self.faults(
                &format!("{FAULT} WHERE f.node = ?1 AND {OPEN} AND f.space = ?2 ORDER BY f.fault"),
                params![node.as_str(), acts],
            );
            Ok(faults?.into())
        })
    }

    /// The same of all nodes, pools and the cluster, by node.
    pub fn open_faults_all(&self) -> Result<Vec<StoredFault>, ReadError> {
        let acts = ProcessingStrategy::ExecuteRemediation.number();
        self.faults(
            &format!("{FAULT} WHERE {OPEN} AND f.space = ?1 ORDER BY f.node, f.fault"),
            params![acts],
        )
    }

    /// Open faults of pools and of the cluster that may have effects, oldest first.
    pub fn open_faults_of_no_node(&self) -> Result<Vec<StoredFault>, ReadError> {
        let acts = ProcessingStrategy::ExecuteRemediation.number();
        self.faults(
            &format!("{FAULT} WHERE f.node IS NULL AND {OPEN} AND f.space = ?1 ORDER BY f.fault"),
            params![acts],
        )
    }

    /// Open faults of one agent's check, of any strategy and subject.
    pub fn open_faults_of_check(
        &self,
        agent: &str,
        check: &str,
    ) -> Result<Vec<StoredFault>, ReadError> {
        self.faults(
            &format!(
                "{FAULT} WHERE s.agent = ?1 AND s.check_name = ?2 AND {OPEN} ORDER BY f.fault"
            ),
            params![agent, check],
        )
    }

    /// Checks of nodes of which anything is remembered: an open fault, or what was said within the
    /// memory of faults.
    pub fn known_checks(&self) -> Result<Vec<String>, ReadError> {
        let sql = "SELECT DISTINCT check_name FROM scopes WHERE node IS NOT NULL";
        self.list("known checks", sql, [], |row| row.get(0))
    }

    /// Open faults of a node that are only observed (weaker strategies), oldest first.
    pub fn observed(&self, node: &NodeName) -> Result<Vec<StoredFault>, ReadError> {
        let acts = ProcessingStrategy::ExecuteRemediation.number();
        self.faults(
            &format!("{FAULT} WHERE f.node = ?1 AND {OPEN} AND f.space <> ?2 ORDER BY f.fault"),
            params![node.as_str(), acts],
        )
    }

    /// Faults of a node that stay until somebody ends them, of any strategy: open, or asserted by
    /// its agent.
    pub fn lasting_faults(&self, node: &NodeName) -> Result<Vec<StoredFault>, ReadError> {
        self.faults(
            &format!(
                "{FAULT} WHERE f.node = ?1 AND (f.open = 1 OR f.asserted = 1) ORDER BY f.fault"
            ),
            params![node.as_str()],
        )
    }

    /// Closed faults of a node that are remembered, the one that closed last first, at most `limit`.
    pub fn closed_faults(
        &self,
        node: &NodeName,
        limit: usize,
    ) -> Result<Vec<StoredFault>, ReadError> {
        let subject = Subject::Node(node.clone()).to_string();
        let mut closed = self.faults(
            &format!(
                "{FAULT} WHERE s.subject = ?1 AND f.open = 0 ORDER BY f.last_at DESC LIMIT ?2"
            ),
            params![subject, limit],
        )?;
        // One that an override made healthy never was open.
        closed.retain(|fault| fault.cause.is_some());
        closed.sort_by_key(|fault| std::cmp::Reverse(fault.closed_at));
        Ok(closed)
    }

    /// Nodes of which something stays until somebody ends it: a lasting fault, or where an agent's
    /// spool stands. Sorted.
    pub fn lasting_nodes(&self) -> Result<Vec<NodeName>, ReadError> {
        let sql = "SELECT f.node FROM faults f
                WHERE (f.open = 1 OR f.asserted = 1) AND f.node IS NOT NULL
             UNION SELECT s.node FROM spools s ORDER BY 1";
        self.list("nodes that are remembered", sql, [], |row| node(row, 0))
    }

    /// One fault, open or closed.
    pub fn fault(&self, id: &FaultId) -> Result<Option<StoredFault>, ReadError> {
        let sql = format!(
            "{FAULT} WHERE s.subject = ?1 AND s.check_name = ?2 AND s.agent = ?3
                AND s.component = ?4 AND f.space = ?5 AND f.device = ?6 AND f.code = ?7
             ORDER BY f.open DESC, f.fault DESC LIMIT 1"
        );
        let found = self.faults(
            &sql,
            params![
                id.scope.subject.to_string(),
                id.scope.check_name,
                id.scope.agent,
                id.scope.component_class,
                id.key.space.number(),
                id.key.device.as_str(),
                id.key.code
            ],
        )?;
        Ok(found.into_iter().next())
    }

    /// What a node's agent asserts, as far as it told, open here or not.
    pub fn asserted_set(&self, node: &NodeName) -> Result<Vec<AssertedFault>, ReadError> {
        let sql = "SELECT s.subject, s.agent, s.component, s.check_name, f.space, f.device_kind,
                f.device, f.code, f.open, f.facts
             FROM faults f JOIN scopes s USING (scope)
             WHERE f.node = ?1 AND (f.open = 1 OR f.asserted = 1) AND f.asserted = 1
             ORDER BY f.fault";
        self.list("asserted faults", sql, params![node.as_str()], |row| {
            let facts = Facts::decode(row.get_ref(9)?.as_blob()?)?;
            Ok(AssertedFault {
                id: fault_id(row)?,
                open: row.get(8)?,
                order: facts.order().cloned(),
                sent: facts.sent,
            })
        })
    }

    /// Last event stored in turn of the spool that this node's agent used last.
    pub fn last_order(&self, node: &NodeName) -> Result<Option<LastOrder>, ReadError> {
        let sql = "SELECT boot, spool, number FROM spools WHERE node = ?1
                   ORDER BY at DESC, spool DESC LIMIT 1";
        self.one("last order", sql, params![node.as_str()], |row| {
            Ok(LastOrder {
                boot: BootId::new(row.get_ref(0)?.as_str()?),
                spool: row.get(1)?,
                number: row.get(2)?,
            })
        })
    }

    /// Last number stored in turn of one spool.
    pub fn last_stored_number(
        &self,
        node: &NodeName,
        spool: &str,
    ) -> Result<Option<u64>, ReadError> {
        let sql = "SELECT number FROM spools WHERE node = ?1 AND spool = ?2";
        self.one("last number", sql, params![node.as_str(), spool], |row| {
            row.get(0)
        })
    }

    /// The open incident of a node object.
    pub fn open_incident_of_uid(&self, node_uid: &str) -> Result<Option<Incident>, ReadError> {
        let sql = "SELECT state FROM incidents WHERE node_uid = ?1 AND closed_at IS NULL LIMIT 1";
        self.one("open incident", sql, params![node_uid], incident)
    }

    /// Open incidents under a node name: more than one only while another machine takes it over.
    pub fn open_incidents_of(&self, node: &NodeName) -> Result<Arc<[Incident]>, ReadError> {
        let few = |open: &Arc<[Incident]>| open.iter().all(|one| one.faults.len() <= FEW);
        self.shared().open_incidents.get(node, few, || {
            let bounds = params![node.as_str()];
            let open = self.list("open incidents", OPEN_INCIDENTS_OF, bounds, incident);
            Ok(open?.into())
        })
    }

    /// All open incidents, oldest first.
    pub fn open_incidents(&self) -> Result<Vec<Incident>, ReadError> {
        self.list("open incidents", OPEN_INCIDENTS, params![], incident)
    }

    /// One incident.
    pub fn incident(&self, id: &IncidentId) -> Result<Option<Incident>, ReadError> {
        let sql = "SELECT state FROM incidents WHERE id = ?1";
        self.one("incident", sql, params![id.as_str()], incident)
    }

    /// Incidents, newest first, at most `limit`.
    pub fn incidents(
        &self,
        filter: &IncidentFilter,
        limit: usize,
    ) -> Result<Vec<Incident>, ReadError> {
        let sql = "SELECT state FROM incidents
             WHERE (?1 IS NULL OR node = ?1) AND (?2 IS NULL OR (closed_at IS NULL) = ?2)
                AND (?3 IS NULL OR id < ?3)
             ORDER BY id DESC LIMIT ?4";
        let node = filter.node.as_ref().map(NodeName::as_str);
        let before = filter.before.as_ref().map(IncidentId::as_str);
        let bounds = params![node, filter.open, before, limit];
        self.list("incidents", sql, bounds, incident)
    }

    /// Transitions after a position, oldest first, at most `limit`.
    pub fn transitions(
        &self,
        of: TransitionsOf<'_>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredTransition>, ReadError> {
        let (condition, value) = match of {
            TransitionsOf::All => ("?3 = ''", ""),
            TransitionsOf::Incident(id) => ("incident = ?3", id.as_str()),
            TransitionsOf::Node(node) => ("node = ?3", node.as_str()),
        };
        let sql = format!(
            "SELECT seq, incident, node, version, at, module, from_state, to_state, cause
             FROM transitions WHERE {condition} AND seq > ?1 ORDER BY seq LIMIT ?2"
        );
        self.list(
            "transitions",
            &sql,
            params![after, limit, value],
            transition,
        )
    }

    /// Events after a position, oldest first, at most `limit`, of one node or all.
    pub fn events(
        &self,
        node: Option<&NodeName>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        let columns = "seq, sender, id, node, machine, boot, generated_at, received_at, strategy,
            healthy, fatal, agent, check_name, component, body";
        let condition = if node.is_some() {
            "node = ?3"
        } else {
            "?3 = ''"
        };
        let sql = format!(
            "SELECT {columns} FROM events WHERE {condition} AND seq > ?1 ORDER BY seq LIMIT ?2"
        );
        let node = node.map_or("", NodeName::as_str);
        self.list("events", &sql, params![after, limit, node], event)
    }

    /// Events of a node that came from this machine and are held ([`crate::Standing::Held`]) after a
    /// position, oldest first, at most `limit`.
    pub fn held(
        &self,
        node: &NodeName,
        machine: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        if !self.shared().holds.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        let sql = "SELECT e.seq, e.sender, e.id, e.node, e.machine, e.boot, e.generated_at,
                e.received_at, e.strategy, e.healthy, e.fatal, e.agent, e.check_name, e.component,
                e.body
             FROM held h JOIN events e ON e.seq = h.seq
             WHERE h.node = ?1 AND h.machine = ?2 AND h.seq > ?3 ORDER BY h.seq LIMIT ?4";
        self.list(
            "held events",
            sql,
            params![node.as_str(), machine, after, limit],
            event,
        )
    }

    /// What is known of a machine.
    pub fn machine(&self, id: &str) -> Result<Option<Arc<Machine>>, ReadError> {
        let few = |known: &Option<Arc<Machine>>| {
            known
                .as_ref()
                .is_none_or(|machine| machine.holds.len() <= FEW)
        };
        self.shared().machines.get(&id.to_owned(), few, || {
            let sql = "SELECT boots, spool, holds FROM machines WHERE machine = ?1";
            self.one("machine", sql, params![id], |row| {
                Ok(Arc::new(Machine {
                    boots: boots_from(row.get_ref(0)?.as_str()?),
                    spool: row.get(1)?,
                    holds: records::decode_holds(row.get_ref(2)?.as_str()?)?,
                }))
            })
        })
    }

    /// Nodes of which events found no room among the open faults, the newest first, at most `limit`.
    pub fn unopened(&self, limit: usize) -> Result<Vec<Unopened>, ReadError> {
        self.list("events that opened nothing", UNOPENED, [limit], unopened)
    }

    /// A module's state.
    pub fn state_get(&self, key: &str) -> Result<Option<Vec<u8>>, ReadError> {
        let sql = "SELECT value FROM state WHERE key = ?1";
        self.one("module state", sql, params![key], |row| row.get(0))
    }

    /// Keys of module states that begin with this, sorted.
    pub fn state_keys(&self, prefix: &str) -> Result<Vec<String>, ReadError> {
        let sql = "SELECT key FROM state
                   WHERE key >= ?1 AND key < ?2 AND substr(key, 1, length(?1)) = ?1 ORDER BY key";
        // Nothing that begins with the prefix comes after it with the last character there is.
        let end = format!("{prefix}\u{10ffff}");
        self.list("module states", sql, params![prefix, end], |row| row.get(0))
    }

    /// The number of the leadership that holds; 0 if none was set.
    pub fn fencing(&self) -> Result<u64, ReadError> {
        let sql = "SELECT fencing FROM counters";
        let found = self.one("fencing", sql, params![], |row| row.get(0))?;
        Ok(found.unwrap_or(0))
    }

    /// A consumer; `None` if it never moved.
    pub fn consumer_position(&self, name: &str) -> Result<Option<Consumer>, ReadError> {
        let sql = format!("{CONSUMER} WHERE c.name = ?1");
        self.one("consumer", &sql, params![name], consumer)
    }

    /// Sizes and counts. Costs some milliseconds with very many open faults.
    pub fn stats(&self) -> Result<Stats, ReadError> {
        let dir = self.dir();
        let size = |name: &str| std::fs::metadata(dir.join(name)).map_or(0, |m| m.len());
        let counters = self.counters();
        self.readers().with("statistics", |connection| {
            let snapshot = connection.unchecked_transaction()?;
            let (last_seq, last_transition) = connection.query_row(
                "SELECT event_seq, transition_seq FROM counters",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let oldest: Option<(u64, i64)> = connection
                .prepare_cached("SELECT seq, received_at FROM events ORDER BY seq LIMIT 1")?
                .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let acts = ProcessingStrategy::ExecuteRemediation.number();
            let (open_faults, observed_faults) = connection
                .prepare_cached(&format!(
                    "SELECT count(*) FILTER (WHERE f.space = ?1),
                        count(*) FILTER (WHERE f.space <> ?1) FROM faults f WHERE {OPEN}"
                ))?
                .query_row([acts], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let open_incidents = connection.query_row(
                "SELECT count(*) FROM incidents WHERE closed_at IS NULL",
                [],
                |row| row.get(0),
            )?;
            let stats = Stats {
                live_bytes: live_bytes(connection)?,
                file_bytes: size("store.db"),
                wal_bytes: size("store.db-wal"),
                free_bytes: free_bytes(dir).unwrap_or(0),
                first_seq: oldest.map_or(0, |(seq, _)| seq),
                last_seq,
                oldest_event: oldest.map(|(_, at)| from_nanos(at)),
                open_faults,
                observed_faults,
                open_incidents,
                last_transition,
                consumers: list(
                    connection,
                    &format!("{CONSUMER} ORDER BY c.name"),
                    [],
                    consumer,
                )?,
                gaps: list(connection, GAPS, [Stats::SHED], gap)?,
                shed: list(connection, SHED, [Stats::SHED], shed)?,
                counters,
            };
            snapshot.finish()?;
            Ok(stats)
        })
    }

    fn faults(&self, sql: &str, params: impl Params) -> Result<Vec<StoredFault>, ReadError> {
        self.list("faults", sql, params, fault)
    }

    fn list<T>(
        &self,
        what: &'static str,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, ReadError> {
        self.readers()
            .with(what, |connection| list(connection, sql, params, read))
    }

    fn one<T>(
        &self,
        what: &'static str,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, ReadError> {
        Ok(self.list(what, sql, params, read)?.into_iter().next())
    }
}

fn list<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection
        .prepare_cached(sql)?
        .query_map(params, read)?
        .collect()
}
