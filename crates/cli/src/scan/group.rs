//! Which lines speak of the same fault.

use std::collections::BTreeMap;

use detect::{Finding, Kind, Severity, lines};
use health_event::{HealthEvent, RecommendedAction, devices_of};

/// Different faults that are told apart in one source. A log of a real machine has a few dozen;
/// the bound is for made-up ones.
pub(super) const MAX_GROUPS: usize = 4096;
/// Bytes of message kept for a fault.
const MAX_MESSAGE: usize = 2048;
/// Of XID 154 the newest statement alone counts; of all others severity and action only rise.
const NEWEST_COUNTS: Kind = Kind::Xid(154);

/// A line and the time it prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u64,
    pub(super) stamp: Option<String>,
}

/// One fault: from the line that opened it to the one that closed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// The first line's finding, with severity and action of the whole, and a short message.
    pub(super) finding: Finding,
    pub(super) count: u64,
    pub(super) first: Place,
    pub(super) last: Place,
    /// The line that said that all is well again.
    pub(super) closed: Option<Place>,
}

impl Group {
    pub(super) fn severity(&self) -> Severity {
        self.finding.severity()
    }
}

/// The faults of one source, in the order in which they opened.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: Vec<Group>,
    /// Identity -> the open one's index in `all`.
    open: BTreeMap<Identity, usize>,
    left_out: u64,
}

/// Kind, code and device.
type Identity = (Kind, String, String);

impl Groups {
    /// Takes in a finding; answers with the first line of the fault if this says nothing new of it.
    pub(super) fn add(&mut self, finding: &Finding, line: u64, printed: &[u8]) -> Option<u64> {
        let identity = identity(finding);
        let place = Place {
            line,
            stamp: lines::stamp(printed),
        };
        if finding.event.is_healthy {
            if let Some(index) = self.open.remove(&identity) {
                self.all[index].closed = Some(place);
            }
            return None;
        }
        if let Some(group) = self.open.get(&identity).map(|index| &mut self.all[*index]) {
            group.count += 1;
            group.last = place;
            let changed = merge(&mut group.finding.event, &finding.event, finding.kind);
            return (!changed).then_some(group.first.line);
        }
        if self.all.len() == MAX_GROUPS {
            self.left_out += 1;
            return None;
        }
        let mut finding = finding.clone();
        let message = &mut finding.event.message;
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        self.open.insert(identity, self.all.len());
        self.all.push(Group {
            finding,
            count: 1,
            first: place.clone(),
            last: place,
            closed: None,
        });
        None
    }

    /// In the order in which they opened.
    pub(super) fn all(&self) -> &[Group] {
        &self.all
    }

    /// Lines of faults beyond [`MAX_GROUPS`].
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

fn identity(finding: &Finding) -> Identity {
    let event = &finding.event;
    let devices = devices_of(&event.entities);
    let keys: Vec<String> = devices.iter().map(|d| d.key().to_string()).collect();
    (finding.kind, event.error_codes.join(" "), keys.join(" "))
}

/// Brings the fault's event up to date; whether severity or action changed.
fn merge(known: &mut HealthEvent, new: &HealthEvent, kind: Kind) -> bool {
    let before = (known.is_fatal, known.recommended_action);
    if kind == NEWEST_COUNTS {
        (known.is_fatal, known.recommended_action) = (new.is_fatal, new.recommended_action);
    } else {
        known.is_fatal |= new.is_fatal;
        known.recommended_action = stronger(known.recommended_action, new.recommended_action);
    }
    before != (known.is_fatal, known.recommended_action)
}

fn stronger(a: RecommendedAction, b: RecommendedAction) -> RecommendedAction {
    if b.strength() > a.strength() { b } else { a }
}
