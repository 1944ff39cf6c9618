//! The text of a condition or Event, in the reference's form and limits.

use std::collections::{BTreeMap, BTreeSet};

use health_event::text::harmless;
use health_event::{Entity, HealthEvent, RecommendedAction};

use super::{FaultEntry, Limits};

/// One entry: what, where, in words, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    codes: Vec<&'a str>,
    entities: Vec<&'a Entity>,
    text: String,
    action: RecommendedAction,
}

impl<'a> Entry<'a> {
    pub(super) fn of_event(event: &'a HealthEvent) -> Self {
        Self {
            codes: event.error_codes.iter().map(String::as_str).collect(),
            entities: event.entities.iter().collect(),
            text: plain(&event.message),
            action: event.recommended_action,
        }
    }

    /// `ErrorCode:79 GPU:0 `.
    fn identity(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        for code in self.codes.iter().filter(|c| !c.is_empty()) {
            let _ = write!(text, "ErrorCode:{} ", harmless(code));
        }
        for entity in &self.entities {
            let (kind, value) = (harmless(&entity.kind), harmless(&entity.value));
            let _ = write!(text, "{kind}:{value} ");
        }
        text
    }

    fn tail(&self) -> String {
        format!("Recommended Action={}", self.action.name())
    }

    fn whole(&self) -> String {
        let gap = if self.text.is_empty() { "" } else { " " };
        format!("{}{}{gap}{}", self.identity(), self.text, self.tail())
    }

    /// The free text shortened so that what stands before the action has at most `limit` bytes;
    /// the identity is never cut.
    fn compact(&self, limit: usize) -> String {
        let identity = self.identity();
        let identity = identity.trim_end();
        let gap = usize::from(!identity.is_empty());
        if identity.len() + gap + self.text.len() <= limit {
            return self.whole();
        }
        let room = limit.saturating_sub(identity.len() + gap + 3);
        let text = &self.text[..floor(&self.text, room)];
        let gap = &" "[..gap];
        if text.is_empty() {
            return format!("{identity}{gap}... {}", self.tail());
        }
        format!("{identity}{gap}{text}... {}", self.tail())
    }

    /// Whether the other says the same of the same GPU or PCI address.
    fn repeats(&self, other: &Self) -> bool {
        let place = |e: &&&Entity| e.kind == "GPU" || e.kind == "PCI";
        self.codes == other.codes
            && self.action == other.action
            && self
                .entities
                .iter()
                .filter(place)
                .any(|e| other.entities.contains(e))
    }
}

/// Parts of a message are separated by `;`, so no part has one; and what steers a terminal does not
/// come to whoever prints the node.
fn plain(message: &str) -> String {
    harmless(message).replace(';', ".")
}

/// The greatest place at or below `at` where the text can be cut.
fn floor(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

/// One entry for each event and group of its codes that share their devices, in the order of the
/// store: a repeat of one of them moves nothing.
pub(super) fn entries<'a>(faults: &[&'a FaultEntry]) -> Vec<Entry<'a>> {
    let mut events: BTreeMap<_, BTreeMap<&str, Vec<&'a FaultEntry>>> = BTreeMap::new();
    for fault in faults {
        let codes = events.entry(fault.seq).or_default();
        codes.entry(fault.code.as_str()).or_default().push(fault);
    }
    let mut entries = Vec::new();
    for codes in events.into_values() {
        let mut groups: Vec<(Vec<&'a Entity>, Entry<'a>)> = Vec::new();
        for (code, faults) in codes {
            let mut seen = BTreeSet::new();
            let entities: Vec<&Entity> = faults
                .iter()
                .flat_map(|f| f.device.entities())
                .filter(|e| seen.insert(*e))
                .collect();
            if let Some((_, entry)) = groups.iter_mut().find(|(known, _)| *known == entities) {
                entry.codes.push(code);
                continue;
            }
            let entry = Entry {
                codes: vec![code],
                entities: entities.clone(),
                text: plain(&faults[0].message),
                action: faults[0].action,
            };
            groups.push((entities, entry));
        }
        entries.extend(groups.into_iter().map(|(_, entry)| entry));
    }
    entries
}

/// The entries, each followed by `;`, in at most [`Limits::message`] bytes: repeats of one
/// identity go first (the later stays), then free texts are shortened, then the last entry that
/// does not fit is cut.
pub(super) fn message(entries: &[Entry<'_>], limits: Limits) -> String {
    let whole: Vec<String> = entries.iter().map(Entry::whole).collect();
    if joined_len(&whole) <= limits.message {
        return join(&whole);
    }
    let later = |i: usize| entries[i + 1..].iter().any(|e| entries[i].repeats(e));
    let kept = (0..entries.len()).filter(|i| !later(*i));
    let compact: Vec<String> = kept.map(|i| entries[i].compact(limits.compact)).collect();
    if joined_len(&compact) <= limits.message {
        return join(&compact);
    }
    cut(&compact, limits.message)
}

fn joined_len(parts: &[String]) -> usize {
    parts.iter().map(|p| p.len() + 1).sum()
}

fn join(parts: &[String]) -> String {
    parts.iter().flat_map(|p| [p.as_str(), ";"]).collect()
}

fn cut(parts: &[String], limit: usize) -> String {
    let mut text = String::new();
    for part in parts {
        if text.len() + part.len() + 1 + 3 > limit {
            let room = limit.saturating_sub(text.len() + 1 + 3);
            if room > 0 {
                text.push_str(&part[..floor(part, room)]);
                text.push(';');
            }
            break;
        }
        text.push_str(part);
        text.push(';');
    }
    text.push_str("...");
    text
}
