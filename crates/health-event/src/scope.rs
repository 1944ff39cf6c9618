//! From statements to open and closed faults.
//!
//! A [`ScopeState`] holds all faults and the remembered healthy statements of one check about one
//! subject. [`ScopeState::apply`] takes one statement in.
//!
//! # Guarantees
//! - For one identity the newest statement of each sender counts; between senders the one with the
//!   later time, at equal times the unhealthy one.
//! - Any permutation and duplication of a history gives the same open faults, severities and
//!   actions (property test below), while the clears needed are still remembered.
//! - While a fault stays open its severity and action only rise; a healthy statement forgets what
//!   was said before it.
//!
//! # How
//! Per sender a fault keeps a short stack of unhealthy statements: the newest last, and before it
//! only those that no later one outweighs. Its length is bounded by the number of grades. What a clear forgets is a prefix of the stack, so every answer is a function of maxima
//! and no arrival order can change it.
//!
//! # What it does not do
//! It does not drop repeated deliveries (the store knows the ids), keep counts, or prune: the
//! caller does, with [`ScopeState::forget`].

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::device::Device;
use crate::event::{RecommendedAction, Space};
use crate::fault::FaultKey;
use crate::order::{Boots, Sender, Stamp};

/// A non-fatal fault that closed more than this many times within [`FLAP_WINDOW`] is held open.
pub const FLAP_LIMIT: usize = 5;
/// Time in which closings are counted, and for which a held fault must be healthy.
pub const FLAP_WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// Clears that one scope keeps at most; the oldest go.
pub const CLEARS_KEPT: usize = 256;

/// One event, reduced to what decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one statement"
)]
pub struct Statement {
    /// Who says it.
    pub sender: Sender,
    /// When.
    pub stamp: Stamp,
    /// Space of its strategy.
    pub space: Space,
    /// Devices, grouped; one whole-check device if none was named.
    pub devices: Vec<Device>,
    /// Codes; one empty code if none was named.
    pub codes: Vec<String>,
    /// Whether all is well.
    pub healthy: bool,
    /// Whether the fault is fatal.
    pub fatal: bool,
    /// Action asked for.
    pub action: RecommendedAction,
    /// Whether the newest statement alone decides severity and action (XID 154).
    pub newest_counts: bool,
    /// A closing that the controller makes itself, which takes the order of the newest statement
    /// known: statements at this very place in the order are closed too, and it speaks of exactly
    /// the devices and codes that it names: no device is the whole-check fault, no code the
    /// empty code, and weaker spaces are left alone.
    pub inclusive: bool,
}

/// One unhealthy statement that a fault remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raise {
    /// When.
    pub stamp: Stamp,
    /// Severity.
    pub fatal: bool,
    /// Action.
    pub action: RecommendedAction,
}

impl Raise {
    /// Whether this one is at least as grave in every respect.
    fn outweighs(&self, other: &Self) -> bool {
        self.fatal >= other.fatal && self.action.strength() >= other.action.strength()
    }
}

/// Why a fault closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseCause {
    /// A healthy statement.
    Recovered,
    /// A healthy statement sent because a reboot made the fault disappear.
    Reboot,
    /// The agent's settled report does not list it.
    NoLongerAsserted,
    /// A person closed it.
    Person,
    /// The check no longer exists.
    RetiredCheck,
    /// Another machine has the node's name.
    NodeReplaced,
    /// The node's object is gone and did not come back in time.
    NodeDeleted,
    /// Found to be the same device as another fault.
    Merged,
}

impl CloseCause {
    const NAMED: [(Self, &'static str); 8] = [
        (Self::Recovered, "recovered"),
        (Self::Reboot, "reboot"),
        (Self::NoLongerAsserted, "no longer asserted"),
        (Self::Person, "person"),
        (Self::RetiredCheck, "retired check"),
        (Self::NodeReplaced, "node replaced"),
        (Self::NodeDeleted, "node deleted"),
        (Self::Merged, "merged"),
    ];

    /// Whether the place is gone that the fault was said of: nobody asserts it there any more.
    pub fn is_of_gone_node(self) -> bool {
        match self {
            Self::NodeReplaced | Self::NodeDeleted => true,
            Self::Recovered
            | Self::Reboot
            | Self::NoLongerAsserted
            | Self::Person
            | Self::RetiredCheck
            | Self::Merged => false,
        }
    }

    /// The name in the store and for people.
    pub fn as_str(self) -> &'static str {
        Self::NAMED
            .iter()
            .find(|(c, _)| *c == self)
            .map_or("recovered", |(_, name)| name)
    }

    /// From the stored name.
    pub fn from_stored(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(cause, _)| *cause)
    }
}

/// What a fault is right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultState {
    /// Space of its strategy.
    pub space: Space,
    /// All that is known of the device.
    pub device: Device,
    /// When the device was last described, for contradicting descriptions.
    pub described: Timestamp,
    /// The code; empty if none.
    pub code: String,
    /// What each sender said last, and what before it was graver. Kept after the closing too, so
    /// that a late word of another sender is judged against it.
    pub raised: BTreeMap<Sender, Vec<Raise>>,
    /// Whether the fault is open.
    pub open: bool,
    /// Severity while open.
    pub fatal: bool,
    /// Action while open.
    pub action: RecommendedAction,
    /// Times of receipt of the last closings, for flapping; at most [`FLAP_LIMIT`] + 1.
    pub closings: Vec<Timestamp>,
    /// When a flapping fault closes if it stays healthy until then; [`Timestamp::MAX`] while it is
    /// not healthy.
    pub held_until: Option<Timestamp>,
    /// Number that the keeper of the state gave to this fault; 0 = none yet. No rule reads it: it
    /// follows the fault when its key changes, and the kept one of two that merge keeps its own.
    pub row: u64,
}

impl FaultState {
    /// Identity within the scope.
    pub fn key(&self) -> FaultKey {
        FaultKey {
            space: self.space,
            device: self.device.key(),
            code: self.code.clone(),
        }
    }

    /// The newest statement of a sender.
    pub fn newest_of(&self, sender: &Sender) -> Option<&Raise> {
        self.raised.get(sender).and_then(|stack| stack.last())
    }

    /// When it closes: it flaps, and is healthy now.
    pub fn closes_at(&self) -> Option<Timestamp> {
        self.held_until.filter(|until| *until != Timestamp::MAX)
    }

    /// Knows of the device, and remembers of its senders, what another one does.
    fn take_words(&mut self, other: &Self, boots: &Boots) {
        self.device
            .complete(&other.device, other.described > self.described);
        for (sender, stack) in &other.raised {
            for raise in stack {
                insert(
                    self.raised.entry(sender.clone()).or_default(),
                    raise.clone(),
                    boots,
                );
            }
        }
    }

    fn new(statement: &Statement, device: &Device, code: &str) -> Self {
        Self {
            space: statement.space,
            device: device.clone(),
            described: statement.stamp.at,
            code: code.to_owned(),
            raised: BTreeMap::new(),
            open: false,
            fatal: false,
            action: RecommendedAction::None,
            closings: Vec::new(),
            held_until: None,
            row: 0,
        }
    }
}

/// A healthy statement, remembered also if it closed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clear {
    /// Who.
    pub sender: Sender,
    /// Space.
    pub space: Space,
    /// The device it named; the whole check if none.
    pub device: Device,
    /// The code it named; empty for all codes.
    pub code: String,
    /// When.
    pub stamp: Stamp,
    /// See [`Statement::inclusive`].
    pub inclusive: bool,
    /// When it was received, for forgetting.
    pub received_at: Timestamp,
}

impl Clear {
    /// Whether it speaks of this fault at all, whatever the order.
    pub fn covers(&self, space: Space, device: &Device, code: &str) -> bool {
        speaks_of(
            (self.inclusive, self.space),
            (&self.device, &self.code),
            (space, device, code),
        )
    }
}

/// Whether a healthy word with this device and code speaks of that fault. `exact` as
/// [`Statement::inclusive`] says.
fn speaks_of(
    (exact, space): (bool, Space),
    (device, code): (&Device, &str),
    fault: (Space, &Device, &str),
) -> bool {
    let whole = device.is_whole_check();
    if exact {
        return space == fault.0
            && code == fault.2
            && whole == fault.1.is_whole_check()
            && (whole || device.agrees(fault.1));
    }
    space.closes(fault.0)
        && (whole || device.agrees(fault.1))
        && (code.is_empty() || code == fault.2)
}

fn covers(healthy: &Statement, fault: &FaultState) -> bool {
    let who = (healthy.inclusive, healthy.space);
    let fault = (fault.space, &fault.device, fault.code.as_str());
    healthy.devices.iter().any(|device| {
        let said = |code: &String| speaks_of(who, (device, code), fault);
        healthy.codes.iter().any(said)
    })
}

/// What a statement did to one fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A fault opened.
    Opened(FaultKey),
    /// An open fault became graver, or is known to be another device now.
    Changed(FaultKey),
    /// Nothing new about an open fault.
    Repeated(FaultKey),
    /// A fault closed.
    Closed(FaultKey),
    /// Two open faults were found to be one; the first key is gone, the second stays.
    Merged(FaultKey, FaultKey),
    /// The key of a fault changed because its device is known better now.
    Renamed(FaultKey, FaultKey),
    /// An unhealthy statement that a later healthy one has answered already: opens nothing.
    Answered(FaultKey),
}

/// All faults and remembered clears of one scope.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeState {
    /// Open faults, and closed ones as long as the caller keeps them.
    pub faults: Vec<FaultState>,
    /// Healthy statements.
    pub clears: Vec<Clear>,
}

impl ScopeState {
    /// Takes in one statement. `now` is the time of receipt: it only serves flapping and
    /// forgetting.
    pub fn apply(&mut self, statement: &Statement, boots: &Boots, now: Timestamp) -> Vec<Change> {
        if statement.healthy {
            self.clear(statement, boots, now)
        } else {
            self.raise(statement, boots, now)
        }
    }

    /// Closes flapping faults that were healthy long enough. Answers which.
    pub fn release_flapping(&mut self, now: Timestamp) -> Vec<Change> {
        let due = |f: &&mut FaultState| f.open && f.held_until.is_some_and(|until| until <= now);
        self.faults
            .iter_mut()
            .filter(due)
            .map(|f| close(f, now))
            .collect()
    }

    /// Forgets clears received before `before`, what they answered, and faults that closed and
    /// were last spoken of before that.
    pub fn forget(&mut self, before: Timestamp, boots: &Boots) {
        let (old, kept): (Vec<Clear>, Vec<Clear>) =
            self.clears.drain(..).partition(|c| c.received_at < before);
        self.clears = kept;
        for clear in &old {
            self.settle(clear, boots);
        }
        self.faults.retain(|f| {
            f.open || f.described >= before || f.closings.last().is_some_and(|at| *at >= before)
        });
    }

    /// Takes out for good what a clear answered that will not be remembered any longer.
    fn settle(&mut self, clear: &Clear, boots: &Boots) {
        for fault in &mut self.faults {
            if clear.covers(fault.space, &fault.device, &fault.code) {
                for (sender, stack) in &mut fault.raised {
                    stack.retain(|raise| !overrules(clear, sender, raise, boots));
                }
                fault.raised.retain(|_, stack| !stack.is_empty());
            }
        }
    }

    /// The open fault of this key.
    pub fn open_fault(&self, key: &FaultKey) -> Option<&FaultState> {
        self.faults.iter().find(|f| f.open && f.key() == *key)
    }

    /// The faults, closed ones too, that a healthy word speaks of.
    pub fn spoken_of(&self, healthy: &Statement) -> impl Iterator<Item = &FaultState> {
        self.faults.iter().filter(|fault| covers(healthy, fault))
    }

    fn clear(&mut self, statement: &Statement, boots: &Boots, now: Timestamp) -> Vec<Change> {
        for device in &statement.devices {
            for code in &statement.codes {
                self.remember(statement, device, code, boots, now);
            }
        }
        let mut changes = Vec::new();
        for index in 0..self.faults.len() {
            // Closed ones too: a later word with an earlier clock can take an answer back.
            if covers(statement, &self.faults[index]) {
                changes.extend(self.judge(index, boots, now, false));
            }
        }
        changes
    }

    fn remember(
        &mut self,
        statement: &Statement,
        device: &Device,
        code: &str,
        boots: &Boots,
        now: Timestamp,
    ) {
        let clear = Clear {
            sender: statement.sender.clone(),
            space: statement.space,
            device: device.clone(),
            code: code.to_owned(),
            stamp: statement.stamp.clone(),
            inclusive: statement.inclusive,
            received_at: now,
        };
        self.keep(clear, boots);
    }

    /// Remembers a healthy statement; of two about the same the later one counts.
    fn keep(&mut self, clear: Clear, boots: &Boots) {
        let known = self.clears.iter_mut().find(|c| {
            c.sender == clear.sender
                && c.inclusive == clear.inclusive
                && c.space == clear.space
                && c.code == clear.code
                && c.device == clear.device
        });
        match known {
            Some(known) => match clear.stamp.compare(&known.stamp, boots) {
                Ordering::Less | Ordering::Equal => {}
                Ordering::Greater => *known = clear,
            },
            None => self.clears.push(clear),
        }
        if self.clears.len() > CLEARS_KEPT {
            let oldest = (0..self.clears.len()).min_by_key(|i| self.clears[*i].received_at);
            let oldest = self.clears.remove(oldest.unwrap_or(0));
            self.settle(&oldest, boots);
        }
    }

    fn raise(&mut self, statement: &Statement, boots: &Boots, now: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        for device in &statement.devices {
            for code in &statement.codes {
                let index = self.find_or_add(statement, device, code, &mut changes);
                push(&mut self.faults[index], statement, boots);
                self.unify(index, boots, &mut changes);
                let index = self
                    .position(statement.space, device, code)
                    .unwrap_or(index);
                changes.extend(self.judge(index, boots, now, true));
            }
        }
        changes.dedup();
        changes
    }

    /// The fault that a device and code mean: the one of that key, else the only one that agrees
    /// and differs in the type of the key, else a new one.
    fn find_or_add(
        &mut self,
        statement: &Statement,
        device: &Device,
        code: &str,
        changes: &mut Vec<Change>,
    ) -> usize {
        let Some(index) = self.position(statement.space, device, code) else {
            self.faults.push(FaultState::new(statement, device, code));
            return self.faults.len() - 1;
        };
        let fault = &mut self.faults[index];
        let before = fault.key();
        let newer = statement.stamp.at >= fault.described;
        fault.device.complete(device, newer);
        fault.described = fault.described.max(statement.stamp.at);
        if fault.open && fault.key() != before {
            changes.push(Change::Renamed(before, fault.key()));
        }
        index
    }

    /// Where in [`ScopeState::faults`] the fault stands that a device and code mean, open or not:
    /// the one of that key, else the only one that agrees and differs in the type of the key.
    pub fn position(&self, space: Space, device: &Device, code: &str) -> Option<usize> {
        let key = device.key();
        let here = |f: &FaultState| f.space == space && f.code == code;
        if let Some(index) = self
            .faults
            .iter()
            .position(|f| here(f) && f.device.key() == key)
        {
            return Some(index);
        }
        let fits = |f: &FaultState| {
            here(f) && f.device.key().kind() != key.kind() && f.device.agrees(device)
        };
        let mut candidates = (0..self.faults.len()).filter(|i| fits(&self.faults[*i]));
        match (candidates.next(), candidates.next()) {
            (Some(only), None) => Some(only),
            (None | Some(_), _) => None,
        }
    }

    /// A better known device may turn out to be one that another fault names by a weaker key.
    fn unify(&mut self, index: usize, boots: &Boots, changes: &mut Vec<Change>) {
        let this = &self.faults[index];
        let key = this.device.key();
        // Keys are made for the faults of this code only: an event may name thousands.
        let same = |f: &FaultState| {
            f.space == this.space && f.code == this.code && {
                let other = f.device.key();
                other == key || (other.kind() != key.kind() && f.device.agrees(&this.device))
            }
        };
        let others: Vec<usize> = (0..self.faults.len())
            .filter(|i| *i != index && same(&self.faults[*i]))
            .collect();
        let &[other] = others.as_slice() else { return };
        let gone = self.faults[other].clone();
        let kept = &mut self.faults[index];
        kept.take_words(&gone, boots);
        if kept.row == 0 {
            kept.row = gone.row;
        }
        if gone.open {
            kept.open = true;
            kept.fatal |= gone.fatal;
            changes.push(Change::Merged(gone.key(), kept.key()));
        }
        self.faults.remove(other);
    }

    /// Looks at all that is known of one fault again.
    fn judge(
        &mut self,
        index: usize,
        boots: &Boots,
        now: Timestamp,
        raised: bool,
    ) -> Option<Change> {
        let verdict = verdict(&self.faults[index], &self.clears, boots);
        let fault = &mut self.faults[index];
        let Some(Grade { fatal, action }) = verdict else {
            return judge_healthy(fault, now, raised);
        };
        // What breaks while it is held waits the whole time anew; what turned fatal waits no more.
        fault.held_until = fault.held_until.filter(|_| !fatal).map(|_| Timestamp::MAX);
        let was = (fault.open, fault.fatal, fault.action);
        (fault.open, fault.fatal, fault.action) = (true, fatal, action);
        if !was.0 {
            Some(Change::Opened(fault.key()))
        } else if was != (true, fatal, action) {
            Some(Change::Changed(fault.key()))
        } else {
            raised.then(|| Change::Repeated(fault.key()))
        }
    }
}

fn judge_healthy(fault: &mut FaultState, now: Timestamp, raised: bool) -> Option<Change> {
    if !fault.open {
        return raised.then(|| Change::Answered(fault.key()));
    }
    let starts = match fault.held_until {
        Some(until) => until == Timestamp::MAX,
        None => !fault.fatal && is_flapping(fault, now),
    };
    if starts {
        fault.held_until = Some(now.saturating_add(FLAP_WINDOW).unwrap_or(Timestamp::MAX));
    }
    match fault.held_until {
        Some(until) if now < until => None,
        Some(_) | None => Some(close(fault, now)),
    }
}

fn is_flapping(fault: &FaultState, now: Timestamp) -> bool {
    let start = now.saturating_sub(FLAP_WINDOW).unwrap_or(Timestamp::MIN);
    fault.closings.iter().filter(|at| **at > start).count() >= FLAP_LIMIT
}

fn close(fault: &mut FaultState, now: Timestamp) -> Change {
    fault.open = false;
    fault.held_until = None;
    fault.fatal = false;
    fault.action = RecommendedAction::None;
    fault.closings.push(now);
    if fault.closings.len() > FLAP_LIMIT + 1 {
        fault.closings.remove(0);
    }
    Change::Closed(fault.key())
}

fn push(fault: &mut FaultState, statement: &Statement, boots: &Boots) {
    let raise = Raise {
        stamp: statement.stamp.clone(),
        fatal: statement.fatal,
        action: statement.action,
    };
    let stack = fault.raised.entry(statement.sender.clone()).or_default();
    insert(stack, raise, boots);
    if statement.newest_counts {
        let older = stack.len().saturating_sub(1);
        stack.drain(..older);
    }
}

/// Keeps the stack rising in order, without any that a later one outweighs.
fn insert(stack: &mut Vec<Raise>, raise: Raise, boots: &Boots) {
    let at = stack.partition_point(|r| r.stamp.compare(&raise.stamp, boots) == Ordering::Less);
    if stack[at..].iter().any(|later| later.outweighs(&raise)) {
        return;
    }
    let later = stack.split_off(at);
    stack.retain(|earlier| !raise.outweighs(earlier));
    stack.push(raise);
    stack.extend(later);
}

struct Grade {
    fatal: bool,
    action: RecommendedAction,
}

/// The grade of the fault if it is open by all that was said, else nothing.
fn verdict(fault: &FaultState, clears: &[Clear], boots: &Boots) -> Option<Grade> {
    let clears: Vec<&Clear> = clears
        .iter()
        .filter(|c| c.covers(fault.space, &fault.device, &fault.code))
        .collect();
    let last_raise = fault
        .raised
        .iter()
        .filter_map(|(sender, stack)| {
            let newest = stack.last()?;
            let answered = clears
                .iter()
                .any(|c| c.sender == *sender && answers(c, newest, boots));
            (!answered).then_some(newest.stamp.at)
        })
        .max()?;
    let last_clear = clears
        .iter()
        .filter(|c| {
            let newest = fault.newest_of(&c.sender);
            newest.is_none_or(|raise| answers(c, raise, boots))
        })
        .map(|c| c.stamp.at)
        .max();
    if last_clear.is_some_and(|at| at > last_raise) {
        return None;
    }
    let standing = fault.raised.iter().flat_map(|(sender, stack)| {
        let clears = &clears;
        stack
            .iter()
            .filter(move |raise| !clears.iter().any(|c| overrules(c, sender, raise, boots)))
    });
    let mut grade = Grade {
        fatal: false,
        action: RecommendedAction::None,
    };
    for raise in standing {
        grade.fatal |= raise.fatal;
        if raise.action.strength() > grade.action.strength() {
            grade.action = raise.action;
        }
    }
    Some(grade)
}

/// Whether a clear makes an unhealthy statement of `sender` a thing of the past.
fn overrules(clear: &Clear, sender: &Sender, raise: &Raise, boots: &Boots) -> bool {
    if clear.sender == *sender {
        answers(clear, raise, boots)
    } else {
        clear.stamp.at > raise.stamp.at
    }
}

/// Whether a clear is later than an unhealthy statement of the same sender.
fn answers(clear: &Clear, raise: &Raise, boots: &Boots) -> bool {
    match clear.stamp.compare(&raise.stamp, boots) {
        Ordering::Greater => true,
        Ordering::Equal => clear.inclusive,
        Ordering::Less => false,
    }
}

mod merge;

#[cfg(test)]
mod flapping_tests;
#[cfg(test)]
mod tests;
