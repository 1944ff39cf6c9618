//! What the writer keeps in memory between transactions, all of it rebuilt from the file after a
//! failure: counters, scopes and boots in bounded caches.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use health_event::{BootId, Boots, NodeName, Order, Scope};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use crate::bounds::OpenFaults;
use crate::changes::Done;
use crate::codec::nanos;
use crate::options::Options;
use crate::queue::Job;
use crate::scopes::CachedScope;
use crate::shares::Shares;
use crate::types::{Commit, Counters};

/// Faults and healthy statements that the cached scopes hold in all: some 700 bytes each.
const SCOPE_WEIGHT_MAX: usize = 20_000;
/// Machines whose boots are cached: some 100 bytes for each boot.
const MACHINES_MAX: usize = 10_000;
/// Nodes whose open faults are counted: some 200 bytes each.
const NODES_MAX: usize = 10_000;

/// A cache of two halves: what was used since the last turn, and before. When the young half is
/// full the old one goes. Bounded, and nothing is ever searched for.
pub(crate) struct Cache<K, V> {
    young: HashMap<K, (usize, V)>,
    old: HashMap<K, (usize, V)>,
    weight: usize,
    half: usize,
}

impl<K: Hash + Eq, V> Cache<K, V> {
    fn new(max: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            weight: 0,
            half: max / 2,
        }
    }

    /// Takes a value out; whoever changes it puts it back.
    pub(crate) fn take(&mut self, key: &K) -> Option<V> {
        if let Some((weight, value)) = self.young.remove(key) {
            self.weight -= weight;
            return Some(value);
        }
        self.old.remove(key).map(|(_, value)| value)
    }

    pub(crate) fn put(&mut self, key: K, weight: usize, value: V) {
        if self.weight + weight > self.half {
            self.turn();
        }
        self.weight += weight;
        self.young.insert(key, (weight, value));
    }

    /// What was not used since the turn before goes; whether something is left.
    fn turn(&mut self) -> bool {
        self.old = std::mem::take(&mut self.young);
        self.weight = 0;
        !self.old.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.weight = 0;
    }
}

/// Highest number of a spool seen in turn in this transaction.
type SpoolNotes = HashMap<(NodeName, Arc<str>), (BootId, u64, Timestamp)>;

pub(crate) struct Ledger {
    pub(crate) options: Options,
    pub(crate) scopes: Cache<Scope, CachedScope>,
    pub(crate) boots: Cache<String, Arc<Boots>>,
    /// By node.
    pub(crate) open_faults: Cache<NodeName, OpenFaults>,
    pub(crate) event_seq: u64,
    pub(crate) transition_seq: u64,
    pub(crate) fencing: u64,
    pub(crate) fault_row: u64,
    pub(crate) counters: Counters,
    pub(crate) shares: Shares,
    /// Whether there may be held events: nearly always there are none, and nobody needs to look.
    pub(crate) holds: bool,
    /// Counters as of the last commit, to go back to.
    kept: Counters,
    first_seq: u64,
    transitions_before: u64,
    nodes: BTreeSet<NodeName>,
    machines: BTreeSet<String>,
    spools: SpoolNotes,
}

/// Whether there are held events.
pub(crate) fn holds_any(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM held)";
    connection.query_row(sql, [], |row| row.get(0))
}

impl Ledger {
    pub(crate) fn load(connection: &Connection, options: Options) -> rusqlite::Result<Self> {
        let mut ledger = Self {
            options,
            scopes: Cache::new(SCOPE_WEIGHT_MAX),
            boots: Cache::new(MACHINES_MAX),
            open_faults: Cache::new(NODES_MAX),
            event_seq: 0,
            transition_seq: 0,
            fencing: 0,
            fault_row: 0,
            counters: Counters::default(),
            shares: Shares::default(),
            holds: false,
            kept: Counters::default(),
            first_seq: 0,
            transitions_before: 0,
            nodes: BTreeSet::new(),
            machines: BTreeSet::new(),
            spools: HashMap::new(),
        };
        ledger.reset(connection)?;
        ledger.shares = Shares::new(ledger.options.retention_bytes, ledger.event_seq);
        Ok(ledger)
    }

    /// Forgets what a failed transaction may have changed and reads the counters anew.
    pub(crate) fn reset(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.scopes.clear();
        self.boots.clear();
        self.open_faults.clear();
        self.shares.reset();
        self.counters = self.kept;
        let sql = "SELECT event_seq, transition_seq, fencing FROM counters";
        (self.event_seq, self.transition_seq, self.fencing) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let sql = "SELECT coalesce(max(fault), 0) FROM faults";
        self.fault_row = connection.query_row(sql, [], |row| row.get(0))?;
        self.holds = holds_any(connection)?;
        Ok(())
    }

    /// What was not used since the turn before goes; whether something is left.
    pub(crate) fn turn(&mut self) -> bool {
        let (scopes, boots) = (self.scopes.turn(), self.boots.turn());
        let open_faults = self.open_faults.turn();
        scopes || boots || open_faults
    }

    pub(crate) fn begin(&mut self) {
        self.first_seq = self.event_seq + 1;
        self.transitions_before = self.transition_seq;
        self.nodes.clear();
        self.machines.clear();
        self.spools.clear();
    }

    /// Writes what is gathered over the transaction.
    pub(crate) fn finish(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(
            "INSERT INTO spools (node, spool, boot, number, at) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (node, spool) DO UPDATE SET
                boot = excluded.boot, number = excluded.number, at = excluded.at
             WHERE excluded.number > number",
        )?;
        for ((node, spool), (boot, number, at)) in &self.spools {
            let (node, boot) = (node.as_str(), boot.as_str());
            statement.execute(params![node, &**spool, boot, number, nanos(*at)])?;
        }
        connection
            .prepare_cached("UPDATE counters SET event_seq = ?1, transition_seq = ?2")?
            .execute(params![self.event_seq, self.transition_seq])?;
        Ok(())
    }

    /// What the transaction that was just committed did.
    pub(crate) fn committed(&mut self) -> Commit {
        self.counters.commits += 1;
        self.kept = self.counters;
        self.shares.committed();
        Commit {
            first_seq: self.first_seq,
            last_seq: self.event_seq,
            nodes: std::mem::take(&mut self.nodes).into_iter().collect(),
            machines: std::mem::take(&mut self.machines).into_iter().collect(),
            transitions: self.transition_seq > self.transitions_before,
        }
    }

    pub(crate) fn touch(&mut self, node: &NodeName) {
        if !self.nodes.contains(node) {
            self.nodes.insert(node.clone());
        }
    }

    pub(crate) fn touch_machine(&mut self, machine: &str) {
        if !self.machines.contains(machine) {
            self.machines.insert(machine.to_owned());
        }
    }

    pub(crate) fn note_spool(&mut self, node: &NodeName, order: &Order, at: Timestamp) {
        let highest = self
            .spools
            .entry((node.clone(), Arc::clone(&order.spool)))
            .or_insert_with(|| (order.boot.clone(), order.number, at));
        if order.number > highest.1 {
            *highest = (order.boot.clone(), order.number, at);
        }
    }

    /// The boots of a machine; none if it is unknown.
    pub(crate) fn boots_of(
        &mut self,
        connection: &Connection,
        machine: &str,
    ) -> rusqlite::Result<Arc<Boots>> {
        let key = machine.to_owned();
        let boots = if let Some(boots) = self.boots.take(&key) {
            boots
        } else {
            let text: Option<String> = connection
                .prepare_cached("SELECT boots FROM machines WHERE machine = ?1")?
                .query_row([machine], |row| row.get(0))
                .optional()?;
            Arc::new(text.map(|text| boots_from(&text)).unwrap_or_default())
        };
        self.boots.put(key, 1, Arc::clone(&boots));
        Ok(boots)
    }

    pub(crate) fn apply(&mut self, connection: &Connection, job: &Job) -> rusqlite::Result<Done> {
        match job {
            Job::Append(batch, _) => self.append(connection, batch).map(Done::Appended),
            Job::Transition(transition, _) => self.transition(connection, transition),
            Job::StatePut {
                key,
                value,
                fencing,
                ..
            } => self.state_put(connection, key, value, *fencing),
            Job::HoldsPut {
                machine,
                holds,
                fencing,
                at,
                ..
            } => self.holds_put(connection, machine, holds, *fencing, *at),
            Job::CloseFault { id, cause, at, .. } => self
                .close_fault(connection, id, *cause, *at)
                .map(Done::Bool),
            Job::CloseGone {
                faults,
                cause,
                fencing,
                at,
                ..
            } => self.close_gone(connection, faults, *cause, *fencing, *at),
            Job::Forget {
                node,
                keys,
                fencing,
                ..
            } => self.forget_keys(connection, node.as_ref(), keys, *fencing),
            Job::SetFencing(number, _) => self.set_fencing(connection, *number),
            Job::ConsumerAdvance { name, seq, at, .. } => {
                crate::changes::consumer_advance(connection, name, *seq, *at)
            }
            Job::ConsumerEnable {
                name, enabled, at, ..
            } => crate::changes::consumer_enable(connection, name, *enabled, *at),
            Job::ObserveBoot {
                machine,
                boot,
                spool,
                at,
                ..
            } => self
                .observe_boot(connection, machine, boot, spool, *at)
                .map(Done::Bool),
            Job::ReleaseFlapping(now, _) => {
                self.release_flapping(connection, *now).map(Done::Count)
            }
            Job::Prune(now, _) => self.prune(connection, *now).map(Done::Pruned),
        }
    }
}

/// Boots as their column has them: joined by `/`, which no boot id contains.
pub(crate) fn boots_from(text: &str) -> Boots {
    let ids = text.split('/').filter(|id| !id.is_empty());
    Boots::new(ids.map(BootId::new).collect())
}

pub(crate) fn boots_to(boots: &Boots) -> String {
    let ids: Vec<&str> = boots.as_slice().iter().map(BootId::as_str).collect();
    ids.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_what_is_used_and_stays_within_its_bound() {
        let mut cache = Cache::new(8);
        for n in 0..100 {
            cache.put(n, 1, n);
            if n > 0 {
                let first = cache.take(&0);
                assert_eq!(first, Some(0), "0 is used all the time");
                cache.put(0, 1, 0);
            }
            assert!(cache.young.len() + cache.old.len() <= 8);
        }
        assert_eq!(cache.take(&50), None);
    }

    #[test]
    fn what_is_not_used_between_two_turns_goes() {
        let mut cache = Cache::new(8);
        cache.put("used", 1, 1);
        cache.put("unused", 1, 2);
        assert!(cache.turn());
        let used = cache.take(&"used").unwrap();
        cache.put("used", 1, used);
        assert!(cache.turn());
        assert_eq!(cache.take(&"unused"), None);
        assert!(!cache.turn(), "nothing was used");
    }

    #[test]
    fn boots_survive_their_column() {
        let boots = Boots::new(vec![BootId::new("a"), BootId::new("b/c")]);
        assert_eq!(boots_from(&boots_to(&boots)), boots);
        assert_eq!(boots_from(""), Boots::default());
    }
}
