//! The API server's nodes, and what they would be without us.

use std::collections::BTreeSet;

use decide::quarantine::{Annotation, CordonOwner, Label, NodeFacts, NodeWrite, TaintRead};
use health_event::HealthEvent;
use health_event::incident::Taint;
use k8s_api::IncidentMark;

use super::promises::Broken;

/// A node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// As a decision reads it.
    pub facts: NodeFacts,
    /// Content of annotation `quarantineHealthEvent`.
    pub events: Vec<HealthEvent>,
    /// Whether the API server tells who made a cordon.
    pub tells_owner: bool,
}

/// Whether others cordoned a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cordon {
    /// Nobody else did.
    #[default]
    No,
    /// Somebody did, and it is to be kept.
    Yes,
    /// Where the API server does not tell who made a cordon: somebody uncordoned a node that says
    /// that the cordon is ours, and somebody cordoned it again, or took our annotations away while
    /// the node came back.
    Unclear,
}

/// What a node carries of others: what must be left once we are gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Others {
    /// Their cordon.
    pub cordon: Cordon,
    /// Their taints.
    pub taints: BTreeSet<Taint>,
    /// Somebody took our annotations off before the controller had seen them, or while it left:
    /// taints and annotations that are left may be anybody's.
    pub unclear: bool,
}

/// Why the API server did not take a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A test of the patch failed, or what it removes is not there.
    Changed,
    /// The object would not be valid: never to be asked for.
    Invalid,
}

/// Annotations that only stand while an incident of ours is open.
pub(super) const OURS: [Annotation; 5] = [
    Annotation::HealthEvents,
    Annotation::Incident,
    Annotation::AppliedTaints,
    Annotation::IsCordoned,
    Annotation::CordonPreExisting,
];

/// Labels that only stand while an incident of ours is open.
pub(super) const LABELS: [Label; 4] = [
    Label::CordonBy,
    Label::CordonReason,
    Label::CordonTimestamp,
    Label::State,
];

fn owner(is_told: bool, owner: CordonOwner) -> CordonOwner {
    if is_told { owner } else { CordonOwner::Unknown }
}

impl Node {
    /// Whether it is cordoned.
    pub fn is_cordoned(&self) -> bool {
        self.facts.unschedulable == Some(true)
    }

    /// Its taints.
    pub fn taints(&self) -> BTreeSet<Taint> {
        self.facts
            .taints
            .iter()
            .flatten()
            .map(|read| read.taint.clone())
            .collect()
    }

    /// Our mark, if it names this object.
    pub fn mark(&self) -> Option<IncidentMark> {
        let text = self.facts.annotations.get(&Annotation::Incident)?;
        IncidentMark::parse(text)
            .ok()
            .filter(|mark| mark.node_uid == self.facts.uid)
    }

    /// Whether its annotations say that the cordon is ours alone.
    pub fn says_cordon_is_ours(&self) -> bool {
        let is = |key| {
            self.facts
                .annotations
                .get(&key)
                .is_some_and(|text| text == "True")
        };
        is(Annotation::IsCordoned) && !is(Annotation::CordonPreExisting)
    }

    /// Whether any of our marks but the records is left.
    pub fn carries_ours(&self) -> bool {
        OURS.iter()
            .any(|key| self.facts.annotations.contains_key(key))
            || LABELS.iter().any(|key| self.facts.labels.contains_key(key))
    }

    /// Somebody else cordons or uncordons it.
    pub fn set_cordon(&mut self, cordoned: bool) {
        self.facts.unschedulable = cordoned.then_some(true);
        self.facts.cordon_owner = owner(cordoned && self.tells_owner, CordonOwner::Others);
    }

    /// Adds a taint.
    pub fn taint(&mut self, taint: &Taint) {
        let read = TaintRead {
            taint: taint.clone(),
            time_added: None,
        };
        self.facts.taints.get_or_insert_default().push(read);
    }

    /// Removes a taint.
    pub fn untaint(&mut self, taint: &Taint) {
        let left = self.facts.taints.take().unwrap_or_default();
        let left: Vec<TaintRead> = left
            .into_iter()
            .filter(|read| read.taint != *taint)
            .collect();
        self.facts.taints = (!left.is_empty()).then_some(left);
    }

    /// The node after a write, as JSON Patch has it: all tests and removals pass, or nothing
    /// changes.
    ///
    /// # Errors
    /// `Refusal`.
    pub fn patched(&self, write: &NodeWrite) -> Result<Self, Refusal> {
        self.test(write)?;
        let mut next = self.clone();
        let facts = &mut next.facts;
        if let Some(unschedulable) = write.unschedulable {
            facts.unschedulable = unschedulable.then_some(true);
            facts.cordon_owner = owner(unschedulable && self.tells_owner, CordonOwner::Us);
        }
        if let Some(taints) = &write.taints {
            let keys: BTreeSet<_> = taints
                .iter()
                .map(|t| (&t.taint.key, &t.taint.effect))
                .collect();
            if keys.len() < taints.len() {
                return Err(Refusal::Invalid);
            }
            facts.taints = (!taints.is_empty()).then(|| taints.clone());
        }
        for (key, value) in &write.annotations {
            match value {
                Some(text) => drop(facts.annotations.insert(*key, text.clone())),
                None => drop(facts.annotations.remove(key).ok_or(Refusal::Changed)?),
            }
            facts.annotations_absent = false;
        }
        for (key, value) in &write.labels {
            match value {
                Some(text) => drop(facts.labels.insert(*key, text.clone())),
                None => drop(facts.labels.remove(key).ok_or(Refusal::Changed)?),
            }
            facts.labels_absent = false;
        }
        if let Some(events) = &write.health_events {
            facts
                .annotations
                .insert(Annotation::HealthEvents, "see Node::events".to_owned());
            next.events.clone_from(events);
        } else if !facts.annotations.contains_key(&Annotation::HealthEvents) {
            next.events.clear();
        }
        Ok(next)
    }

    fn test(&self, write: &NodeWrite) -> Result<(), Refusal> {
        let (facts, test) = (&self.facts, &write.test);
        let passes = facts.uid == test.uid
            && facts.annotations.get(&Annotation::Incident) == test.incident.as_ref()
            && test
                .unschedulable
                .is_none_or(|read| read == facts.unschedulable)
            && test
                .taints
                .as_ref()
                .is_none_or(|read| *read == facts.taints)
            && facts.annotations_absent == test.annotations_absent
            && facts.labels_absent == test.labels_absent;
        if passes {
            Ok(())
        } else {
            Err(Refusal::Changed)
        }
    }

    /// What is wrong with a node to which we have just written, seen from the others.
    pub fn against(&self, others: &Others) -> Option<Broken> {
        if others.cordon == Cordon::Yes && !self.is_cordoned() {
            return Some(Broken::ForeignCordonRemoved);
        }
        if !others.taints.is_subset(&self.taints()) {
            return Some(Broken::ForeignTaintRemoved);
        }
        None
    }

    /// Whether nothing of ours is left but records.
    pub fn is_as_before(&self, others: &Others) -> bool {
        let cordon = match others.cordon {
            Cordon::No => !self.is_cordoned(),
            Cordon::Yes => self.is_cordoned(),
            Cordon::Unclear => true,
        };
        let (taints, more) = (self.taints(), self.carries_ours());
        let exactly = taints == others.taints && !more;
        cordon && (exactly || (others.unclear && taints.is_superset(&others.taints)))
    }
}
