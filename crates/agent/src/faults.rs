//! What the detectors inside this agent assert: the level that the report carries.
//!
//! # Invariants
//! - Folded with the same rules as everywhere ([`ScopeState`]), from this agent's own events only.
//! - A fault that flaps is asserted as its detector last said, not as it is held.
//! - An XID 154 is tied to its cause before it is numbered ([`Faults::attach`]).
//! - At most [`MAX_ASSERTED`]; beyond that [`Faults::is_overflowing`] and no detector denies. What
//!   more would open is sent like any event, and nothing is kept of it here.

use std::collections::BTreeMap;
use std::sync::Arc;

use detect::xid::{self, RECOVERY_ACTION};
use health_event::{
    Boots, Change, Device, FaultKey, FaultState, HealthEvent, Order, ProcessingStrategy, Scope,
    ScopeState, Sender, SentIdentity, Stamp, Statement, checks, devices_of, fault, keys,
};
use jiff::Timestamp;
use prost::DecodeError;

use crate::{ids::Identity, own};

/// Faults asserted at most. A node has at most 64 devices of a kind, and some ten codes each.
pub const MAX_ASSERTED: usize = 4_096;

/// One asserted fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assertion {
    /// As it was sent.
    pub identity: SentIdentity,
    /// Order of the last event.
    pub order: Option<Order>,
    /// The last event, whole, with id and order: encoded, because that takes a fifth of the memory
    /// and it is rarely looked at. Faults that one event told share it.
    pub body: Arc<[u8]>,
    /// The device as it is known by now; the event's own may be less.
    pub device: Device,
    /// The code.
    pub code: String,
}

impl Assertion {
    /// The last event.
    ///
    /// # Errors
    /// If the stored bytes are none.
    pub fn event(&self) -> Result<HealthEvent, DecodeError> {
        wire::decode_body(&self.body)
    }

    /// The last event reduced to this one fault.
    ///
    /// # Errors
    /// If the stored bytes are none.
    pub fn single(&self) -> Result<HealthEvent, DecodeError> {
        let mut event = self.event()?;
        event.entities = self.device.entities().to_vec();
        event.error_codes = if self.code.is_empty() {
            Vec::new()
        } else {
            vec![self.code.clone()]
        };
        Ok(event)
    }
}

/// An event with what its assertions share.
struct Told<'a> {
    event: &'a HealthEvent,
    order: Option<Order>,
    body: Arc<[u8]>,
}

type Key = (Scope, FaultKey);

/// The asserted set.
#[derive(Debug)]
pub struct Faults {
    identity: Identity,
    sender: Sender,
    boots: Boots,
    scopes: BTreeMap<Scope, ScopeState>,
    asserted: BTreeMap<Key, Assertion>,
}

/// A row of the stored set: written, or removed if the assertion is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRow {
    /// Key of the row.
    pub key: String,
    /// What it holds.
    pub assertion: Option<Assertion>,
}

impl Faults {
    /// From what was stored: boots seen, oldest first, the present one last.
    pub fn new(identity: Identity, boots: Boots, stored: Vec<Assertion>) -> Self {
        let sender = Sender::agent(identity.node.as_str());
        let mut faults = Self {
            identity,
            sender,
            boots,
            scopes: BTreeMap::new(),
            asserted: BTreeMap::new(),
        };
        for assertion in stored {
            faults.restore(assertion);
        }
        faults
    }

    /// The boots of this machine as far as this agent knows them.
    pub fn boots(&self) -> &Boots {
        &self.boots
    }

    /// What is said instead of one of our own events, before it is numbered, given what is open:
    /// an XID 154 and its cause are one problem.
    pub fn attach(&self, event: HealthEvent) -> Vec<HealthEvent> {
        if !xid::is_tied(&event) {
            return vec![event];
        }
        let gpu = self.open_on_gpu(&event);
        xid::attach(event, &gpu)
    }

    /// What lines of the present boot say is open on the GPU of an XID, the XID itself left out.
    /// What an earlier boot said may be about to close, and then answers for nothing.
    fn open_on_gpu(&self, event: &HealthEvent) -> xid::Gpu {
        let mut gpu = xid::Gpu::default();
        let scope = Scope::of(event, self.identity.node.clone());
        let devices = devices_of(&event.entities);
        let (Some(state), [device]) = (self.scopes.get(&scope), devices.as_slice()) else {
            return gpu;
        };
        let present = &self.identity.boot;
        let is_recovery = event.error_codes == [RECOVERY_ACTION];
        let of_this_boot = |fault: &&FaultState| {
            let newest = fault.newest_of(&self.sender);
            let order = newest.and_then(|raise| raise.stamp.order.as_ref());
            order.is_some_and(|order| !present.is_unknown() && order.boot == *present)
        };
        // Of causes only a 154 asks.
        let asked = |fault: &&FaultState| is_recovery || fault.code == RECOVERY_ACTION;
        let open = state.faults.iter().filter(|f| f.open).filter(asked);
        let here = open.filter(|f| f.device.agrees(device));
        for fault in here.filter(of_this_boot) {
            if fault.code == RECOVERY_ACTION {
                let asserted = self.asserted.get(&(scope.clone(), fault.key()));
                gpu.recoveries
                    .extend(asserted.and_then(|a| readable(a.single())));
            } else if fault.space == ProcessingStrategy::ExecuteRemediation {
                gpu.causes.push(xid::Cause {
                    code: fault.code.clone(),
                    fatal: fault.fatal,
                    action: fault.action,
                });
            }
        }
        gpu
    }

    /// Takes in one of our own events, numbered. Answers which rows changed.
    pub fn apply(&mut self, event: &HealthEvent) -> Vec<FaultRow> {
        self.apply_encoded(event, &wire::encode_body(event))
    }

    /// The same, with the event's bytes where they are known.
    pub fn apply_encoded(&mut self, event: &HealthEvent, body: &[u8]) -> Vec<FaultRow> {
        let now = event.generated_at.unwrap_or(Timestamp::MIN);
        let scope = Scope::of(event, self.identity.node.clone());
        let statement = statement(event, &self.sender);
        if self.is_overflowing() && !self.knows(&scope, &statement) {
            return Vec::new();
        }
        let state = self.scopes.entry(scope.clone()).or_default();
        // Numbers rise within a spool: nothing older than what is known will be stated.
        state.forget(now, &self.boots);
        let changes = state.apply(&statement, &self.boots, now);
        let told = Told {
            event,
            order: order_of(event),
            body: body.into(),
        };
        let mut rows = Vec::new();
        for change in changes {
            match change {
                Change::Opened(key) | Change::Changed(key) | Change::Repeated(key) => {
                    rows.extend(self.assert(&scope, key, &told));
                }
                Change::Closed(key) => rows.extend(self.drop_row(&scope, key)),
                Change::Renamed(gone, kept) | Change::Merged(gone, kept) => {
                    rows.extend(self.drop_row(&scope, gone));
                    rows.extend(self.assert(&scope, kept, &told));
                }
                Change::Answered(_) => {}
            }
        }
        self.drop_held(&scope, &mut rows);
        rows
    }

    /// Takes over a fault that the controller has open from this agent's detectors.
    pub fn adopt(&mut self, event: &HealthEvent) -> Vec<FaultRow> {
        if let Some(order) = order_of(event)
            && !self.boots.as_slice().contains(&order.boot)
        {
            let mut boots = vec![order.boot];
            boots.extend_from_slice(self.boots.as_slice());
            self.boots = Boots::new(boots);
        }
        self.apply(event)
    }

    /// The faults that a reboot ends and that were not found again in the present boot.
    pub fn not_found_again(&self) -> Vec<HealthEvent> {
        let Some(present) = self.boots.present() else {
            return Vec::new();
        };
        self.asserted
            .iter()
            .filter(|(_, a)| {
                let boot = a.order.as_ref().map(|order| &order.boot);
                boot.is_some_and(|boot| !boot.is_unknown() && boot != present)
            })
            .filter(|((scope, _), _)| {
                let ended = checks::cleared_by(&scope.agent, &scope.check_name);
                ended != checks::ClearedBy::Reading
            })
            .filter_map(|(_, a)| readable(a.single()))
            .map(|single| own::gone_after_reboot(&single, present))
            .collect()
    }

    /// Whether a check of the agent's own health is asserted.
    pub fn is_raised(&self, check: &str) -> bool {
        self.asserted
            .keys()
            .any(|(scope, _)| scope.agent == checks::WARDEN_AGENT && scope.check_name == check)
    }

    /// Number and hash of the set.
    pub fn hash(&self) -> (u32, [u8; 32]) {
        let hash = SentIdentity::hash_of_set(self.asserted.values().map(|a| a.identity));
        (u32::try_from(self.asserted.len()).unwrap_or(u32::MAX), hash)
    }

    /// The last events of the set, each once.
    pub fn list(&self) -> Vec<HealthEvent> {
        let mut seen = std::collections::BTreeSet::new();
        self.asserted
            .values()
            .filter(|a| seen.insert(&a.body))
            .filter_map(|a| readable(a.event()))
            .collect()
    }

    /// All rows, for writing the stored set anew.
    pub fn rows(&self) -> Vec<FaultRow> {
        let row = |(key, assertion): (&Key, &Assertion)| FaultRow {
            key: row_key(key),
            assertion: Some(assertion.clone()),
        };
        self.asserted.iter().map(row).collect()
    }

    /// How many are asserted.
    pub fn len(&self) -> usize {
        self.asserted.len()
    }

    /// Whether none is asserted.
    pub fn is_empty(&self) -> bool {
        self.asserted.is_empty()
    }

    /// Whether there were more faults than are kept, so that the set denies nothing.
    pub fn is_overflowing(&self) -> bool {
        self.asserted.len() >= MAX_ASSERTED
    }

    /// Whether it opens nothing that is not known.
    fn knows(&self, scope: &Scope, statement: &Statement) -> bool {
        let known = |device: &Device, code: &String| {
            let state = self.scopes.get(scope);
            state.is_some_and(|s| s.position(statement.space, device, code).is_some())
        };
        let mut devices = statement.devices.iter();
        statement.healthy || devices.all(|d| statement.codes.iter().all(|code| known(d, code)))
    }

    fn assert(&mut self, scope: &Scope, key: FaultKey, told: &Told<'_>) -> Option<FaultRow> {
        let fault = self.scopes.get(scope)?.open_fault(&key)?;
        let map_key = (scope.clone(), key);
        if self.asserted.len() >= MAX_ASSERTED && !self.asserted.contains_key(&map_key) {
            return None;
        }
        let earlier = self.asserted.get(&map_key).and_then(|known| {
            let (known, this) = (known.order.as_ref()?, told.order.as_ref()?);
            Some(this.compare(known, &self.boots).is_lt())
        });
        if earlier == Some(true) {
            return None;
        }
        // The identity is that of the device as this event names it.
        let sent = devices_of(&told.event.entities);
        let device = sent
            .iter()
            .find(|d| d.key() == map_key.1.device)
            .or_else(|| sent.iter().find(|d| d.agrees(&fault.device)))
            .unwrap_or(&fault.device);
        let assertion = Assertion {
            identity: SentIdentity::of(told.event, device, &map_key.1.code),
            order: told.order.clone(),
            body: Arc::clone(&told.body),
            device: fault.device.clone(),
            code: map_key.1.code.clone(),
        };
        let row = FaultRow {
            key: row_key(&map_key),
            assertion: Some(assertion.clone()),
        };
        self.asserted.insert(map_key, assertion);
        Some(row)
    }

    fn drop_row(&mut self, scope: &Scope, key: FaultKey) -> Option<FaultRow> {
        let key = (scope.clone(), key);
        self.asserted.remove(&key).map(|_| FaultRow {
            key: row_key(&key),
            assertion: None,
        })
    }

    fn drop_held(&mut self, scope: &Scope, rows: &mut Vec<FaultRow>) {
        let Some(state) = self.scopes.get(scope) else {
            return;
        };
        let held: Vec<FaultKey> = state
            .faults
            .iter()
            .filter(|f| f.open && f.closes_at().is_some())
            .map(FaultState::key)
            .collect();
        for key in held {
            rows.extend(self.drop_row(scope, key));
        }
    }

    fn restore(&mut self, assertion: Assertion) {
        let Some(single) = readable(assertion.single()) else {
            return;
        };
        let scope = Scope::of(&single, self.identity.node.clone());
        let now = single.generated_at.unwrap_or(Timestamp::MIN);
        let state = self.scopes.entry(scope.clone()).or_default();
        state.apply(&statement(&single, &self.sender), &self.boots, now);
        let key = FaultKey {
            space: single.strategy,
            device: assertion.device.key(),
            code: assertion.code.clone(),
        };
        self.asserted.insert((scope, key), assertion);
    }
}

/// An event kept as bytes. Ours are none only in a damaged spool, which is looked at before.
fn readable(event: Result<HealthEvent, DecodeError>) -> Option<HealthEvent> {
    event
        .inspect_err(|error| tracing::error!(%error, "an asserted fault's event can't be read"))
        .ok()
}

fn row_key((scope, key): &Key) -> String {
    let parts = [
        scope.agent.as_str(),
        &scope.component_class,
        &scope.check_name,
        key.space.name(),
        key.device.as_str(),
        &key.code,
    ];
    parts.join("\u{1f}")
}

fn order_of(event: &HealthEvent) -> Option<Order> {
    event.metadata.get(keys::ORDER)?.parse().ok()
}

fn statement(event: &HealthEvent, sender: &Sender) -> Statement {
    let codes: Vec<String> = fault::codes_of(event)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let newest_counts =
        event.check_name == checks::XID && codes.iter().any(|c| c == RECOVERY_ACTION);
    Statement {
        sender: sender.clone(),
        stamp: Stamp {
            order: order_of(event),
            at: event.generated_at.unwrap_or(Timestamp::MIN),
        },
        space: event.strategy,
        devices: devices_of(&event.entities),
        codes,
        healthy: event.is_healthy,
        fatal: event.is_fatal,
        action: event.recommended_action,
        newest_counts,
        inclusive: false,
    }
}

#[cfg(test)]
mod tests;
