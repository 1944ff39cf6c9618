//! How many faults of one node may be open, so that nobody's flood makes a decision, an incident or
//! a look at the node slow, or keeps others' faults out.
//!
//! # Guarantees
//! - Of what isn't said by Warden's own checks a node has [`NODE`] open faults, and each agent name
//!   [`AGENT`] of them. Warden's own checks (the kernel log's XIDs among them) have [`NODE`] of their
//!   own, whatever the others do.
//! - A quarter of each is kept for fatal ones, and each of the first [`LEAST_AGENTS`] agents with
//!   open faults may have [`LEAST`] however full the node is.
//! - What finds no room is stored as an event, opens nothing, and is counted by node (`unopened`), in
//!   the same transaction. What is open goes on as ever: it repeats, becomes graver, and closes.
//! - Of a node [`CHECKS`] checks are remembered; for one more the oldest of which nothing is open is
//!   forgotten, never one of Warden's own.

use std::collections::HashMap;

use health_event::{Device, Scope, Statement, Subject, checks};
use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::changes::scopes_where;
use crate::codec::nanos;
use crate::ledger::Ledger;
use crate::rows::OPEN;
use crate::scopes::CachedScope;

/// Open faults of a node: 16 GPUs and 18 switches or NICs with two dozen codes each.
pub const NODE: usize = 1_024;
/// Those of one agent name.
pub const AGENT: usize = 512;
/// What an agent may have in a full node.
pub const LEAST: usize = 16;
/// Agents for which that holds.
pub const LEAST_AGENTS: usize = 64;

/// Checks of a node, of whatever agents, of which something is remembered.
pub const CHECKS: usize = 1_024;
/// Of so many old ones one at least is not of Warden's own.
const LOOKED_AT: usize = checks::CHECKS.len() + 1;

/// Open faults of a node by who says them.
#[derive(Debug, Default)]
pub(crate) struct OpenFaults {
    ours: usize,
    others: usize,
    agents: HashMap<String, usize>,
}

impl OpenFaults {
    fn load(connection: &Connection, node: &str) -> rusqlite::Result<Self> {
        let mut open = Self::default();
        let sql = format!(
            "SELECT s.agent, s.component, s.check_name, count(*)
             FROM faults f JOIN scopes s USING (scope)
             WHERE f.node = ?1 AND {OPEN} GROUP BY s.scope"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([node])?;
        while let Some(row) = rows.next()? {
            let agent = row.get_ref(0)?.as_str()?;
            let ours = is_ours(agent, row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str()?);
            open.add(agent, ours, row.get(3)?, 0);
        }
        Ok(open)
    }

    fn add(&mut self, agent: &str, ours: bool, came: usize, went: usize) {
        let change = |count: &mut usize| *count = (*count + came).saturating_sub(went);
        if ours {
            change(&mut self.ours);
            return;
        }
        change(&mut self.others);
        let of_agent = self.agents.entry(agent.to_owned()).or_default();
        change(of_agent);
        if *of_agent == 0 {
            self.agents.remove(agent);
        }
    }

    /// How many more faults of this agent may open.
    fn room(&self, agent: &str, ours: bool, fatal: bool) -> usize {
        let bound = |most: usize| if fatal { most } else { most - most / 4 };
        if ours {
            return bound(NODE).saturating_sub(self.ours);
        }
        let of_agent = self.agents.get(agent).copied().unwrap_or(0);
        let of_node = bound(NODE).saturating_sub(self.others);
        let shared = bound(AGENT).saturating_sub(of_agent).min(of_node);
        let agents = self.agents.len() + usize::from(of_agent == 0);
        if agents <= LEAST_AGENTS {
            shared.max(LEAST.saturating_sub(of_agent))
        } else {
            shared
        }
    }
}

/// Whether a check is one of Warden's own.
fn is_ours(agent: &str, component_class: &str, name: &str) -> bool {
    checks::find(agent, name).is_some_and(|check| check.component_class == component_class)
}

/// What of an unhealthy statement finds room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    Whole,
    /// What the statement names now; the rest was taken out of it.
    Part,
    Nothing,
}

impl Ledger {
    /// Takes out of an unhealthy statement what must not open.
    pub(crate) fn fit(
        &mut self,
        connection: &Connection,
        key: &Scope,
        scope: &CachedScope,
        statement: &mut Statement,
    ) -> rusqlite::Result<Fit> {
        let Subject::Node(node) = &key.subject else {
            return Ok(Fit::Whole);
        };
        let open = match self.open_faults.take(node) {
            Some(open) => open,
            None => OpenFaults::load(connection, node.as_str())?,
        };
        let ours = is_ours(&key.agent, &key.component_class, &key.check_name);
        let room = open.room(&key.agent, ours, statement.fatal);
        self.open_faults.put(node.clone(), 1, open);
        Ok(cut(scope, statement, room))
    }

    /// Counts what opened and closed.
    pub(crate) fn note_open(&mut self, key: &Scope, (before, after): (usize, usize)) {
        let Subject::Node(node) = &key.subject else {
            return;
        };
        if before == after {
            return;
        }
        // Not known = read from the file when somebody asks.
        let Some(mut open) = self.open_faults.take(node) else {
            return;
        };
        let ours = is_ours(&key.agent, &key.component_class, &key.check_name);
        open.add(&key.agent, ours, after, before);
        self.open_faults.put(node.clone(), 1, open);
    }

    /// Before a check that has no row yet gets one.
    pub(crate) fn forget_a_check(
        &mut self,
        connection: &Connection,
        new: &Scope,
    ) -> rusqlite::Result<()> {
        let subject = new.subject.to_string();
        let known: usize = connection
            .prepare_cached("SELECT count(*) FROM scopes WHERE subject = ?1")?
            .query_row([&subject], |row| row.get(0))?;
        if known < CHECKS {
            return Ok(());
        }
        let old = scopes_where(
            connection,
            "SELECT subject, agent, component, check_name FROM scopes s
             WHERE subject = ?1 AND NOT EXISTS (SELECT 1 FROM faults f
                WHERE f.scope = s.scope AND (f.open = 1 OR f.asserted = 1))
             ORDER BY scope LIMIT ?2",
            params![subject, LOOKED_AT],
        )?;
        let is_others = |key: &&Scope| !is_ours(&key.agent, &key.component_class, &key.check_name);
        let Some(oldest) = old.iter().find(is_others) else {
            return Ok(());
        };
        self.with_scope(connection, oldest, |ledger, scope| {
            scope.state.faults.clear();
            scope.state.clears.clear();
            ledger.counters.clears_dropped += scope.drop_clears(connection)?;
            Ok(())
        })
    }

    /// Writes down that an event, or a part of it, opened nothing for want of room.
    pub(crate) fn note_unopened(
        &mut self,
        connection: &Connection,
        key: &Scope,
        at: Timestamp,
    ) -> rusqlite::Result<()> {
        self.counters.over_limit += 1;
        let Subject::Node(node) = &key.subject else {
            return Ok(());
        };
        connection
            .prepare_cached(
                "INSERT INTO unopened (node, agent, check_name, events, first_at, last_at)
                 VALUES (?1, ?2, ?3, 1, ?4, ?4)
                 ON CONFLICT (node) DO UPDATE SET agent = excluded.agent,
                    check_name = excluded.check_name, events = events + 1,
                    last_at = max(last_at, excluded.last_at)",
            )?
            .execute(params![node.as_str(), key.agent, key.check_name, nanos(at)])?;
        Ok(())
    }
}

fn cut(scope: &CachedScope, statement: &mut Statement, room: usize) -> Fit {
    let (devices, codes) = (&statement.devices, &statement.codes);
    // Nearly always.
    if devices.len() * codes.len() <= room {
        return Fit::Whole;
    }
    let is_open = |device: &Device, code: &String| {
        let at = scope.state.position(statement.space, device, code);
        at.and_then(|at| scope.state.faults.get(at))
            .is_some_and(|fault| fault.open)
    };
    let opens = devices
        .iter()
        .flat_map(|device| codes.iter().map(move |code| (device, code)))
        .filter(|(device, code)| !is_open(device, code))
        .count();
    if opens <= room {
        return Fit::Whole;
    }
    if room > 0 {
        statement.devices.truncate(room);
        statement
            .codes
            .truncate((room / statement.devices.len()).max(1));
        return Fit::Part;
    }
    // What is open already is spoken of.
    let of_device = |device: &Device| codes.iter().all(|code| is_open(device, code));
    let of_code = |code: &String| devices.iter().all(|device| is_open(device, code));
    let open_devices: Vec<_> = devices.iter().filter(|d| of_device(d)).cloned().collect();
    if !open_devices.is_empty() {
        statement.devices = open_devices;
        return Fit::Part;
    }
    let open_codes: Vec<_> = codes.iter().filter(|c| of_code(c)).cloned().collect();
    if !open_codes.is_empty() {
        statement.codes = open_codes;
        return Fit::Part;
    }
    Fit::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(agents: usize, each: usize) -> OpenFaults {
        let mut open = OpenFaults::default();
        for agent in 0..agents {
            open.add(&agent.to_string(), false, each, 0);
        }
        open
    }

    #[test]
    fn one_agent_has_half_and_fatal_ones_a_quarter_more() {
        let open = open(1, 384);
        assert_eq!(open.room("0", false, false), 0);
        assert_eq!(open.room("0", false, true), 128);
        assert_eq!(open.room("1", false, false), 384);
        assert_eq!(open.room("0", true, true), NODE, "Warden's own checks");
    }

    #[test]
    fn a_full_node_leaves_room_for_others_but_never_without_end() {
        let full = open(2, 512);
        assert_eq!(full.room("2", false, true), LEAST);
        assert_eq!(full.room("2", false, false), LEAST);
        assert_eq!(full.room("0", false, true), 0);
        let many = open(LEAST_AGENTS, LEAST);
        assert_eq!(many.room("new", false, true), 0);
        assert_eq!(many.room("0", false, true), 0);
        let few = open(LEAST_AGENTS + 1, 15);
        assert_eq!(few.room("0", false, false), 0, "975 others");
    }

    #[test]
    fn what_went_makes_room_again() {
        let mut open = open(1, 512);
        open.add("0", false, 0, 512);
        assert_eq!(open.room("0", false, false), 384);
        assert!(open.agents.is_empty());
    }
}
