//! What of a node is ours: by its annotations, by the API server's record of its cordon, and by
//! what the incident knows to have written.

use std::collections::BTreeSet;

use health_event::incident::{Incident, Marks, QuarantineStatus, Taint};
use k8s_api::marks::hold_text;
use k8s_api::{AppliedTaint, IncidentMark, names};

use super::facts::{Annotation, CordonOwner, NodeFacts, TaintRead};

/// The mark, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MarkRead {
    Absent,
    Unreadable,
    OtherUid,
    Ours(IncidentMark),
}

/// Our marks on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OnNode {
    pub(super) mark: MarkRead,
    pub(super) cordon: bool,
    pub(super) cordon_pre_existing: bool,
    pub(super) taints: Vec<AppliedTaint>,
}

impl OnNode {
    /// As the node alone tells: its annotations, and whose its cordon is.
    pub(super) fn read(node: &NodeFacts) -> Self {
        Self::annotated(node).with_owner(node)
    }

    /// As the annotations record them.
    fn annotated(node: &NodeFacts) -> Self {
        let mark = match node.annotations.get(&Annotation::Incident) {
            None => MarkRead::Absent,
            Some(text) => match IncidentMark::parse(text) {
                Err(_) => MarkRead::Unreadable,
                Ok(mark) if mark.node_uid == node.uid => MarkRead::Ours(mark),
                Ok(_) => MarkRead::OtherUid,
            },
        };
        let is_true = |key| node.annotations.get(&key).is_some_and(|v| v == names::TRUE);
        let taints = node.annotations.get(&Annotation::AppliedTaints);
        Self {
            // Without a mark these are another system's, and nothing of ours.
            cordon: mark != MarkRead::Absent && is_true(Annotation::IsCordoned),
            cordon_pre_existing: is_true(Annotation::CordonPreExisting),
            taints: taints
                .filter(|_| mark != MarkRead::Absent)
                // What can't be read names no taint of ours: those on the node stay.
                .and_then(|text| AppliedTaint::parse_list(text).ok())
                .unwrap_or_default(),
            mark,
        }
    }

    /// The API server's record of the cordon stands above what we wrote down about it.
    fn with_owner(mut self, node: &NodeFacts) -> Self {
        // A copied object has its cordon from whoever copied it.
        if is_cordoned(node) && self.mark != MarkRead::OtherUid {
            match node.cordon_owner {
                CordonOwner::Unknown => {}
                CordonOwner::Us => (self.cordon, self.cordon_pre_existing) = (true, false),
                CordonOwner::Others => self.cordon_pre_existing = true,
            }
        }
        self
    }

    /// What is ours on the node of this incident: what the incident records to have seen there, and
    /// what the annotations say beyond that.
    pub(super) fn of_incident(node: &NodeFacts, incident: &Incident) -> Self {
        let mut found = Self::annotated(node);
        let before = incident.marks_before.as_ref().unwrap_or(&incident.marks);
        match found.carries(incident) {
            Some(version) if version == incident.version => found.add(&incident.marks),
            // A mark that is there again after we began to leave is of a late write, which says itself
            // what it brought; what was never seen there is not ours.
            Some(_)
                if incident.marks_observed
                    && matches!(incident.quarantine, QuarantineStatus::Releasing(_)) =>
            {
                let said = found.taints.clone();
                found.add(before);
                found
                    .taints
                    .retain(|a| !said.iter().any(|s| s.taint == a.taint));
                found.taints.extend(said);
            }
            Some(_) if incident.marks_observed => found.add(before),
            None if incident.quarantine.is_out() && incident.marks_observed => {
                found.add(before);
                // Without our annotations it may be our own change that took a taint off.
                let wanted = &incident.marks.taints;
                let under_way = incident.quarantine == QuarantineStatus::Applying;
                found.taints.retain(|a| {
                    !under_way || wanted.contains(&a.taint) || has_taint(node, &a.taint)
                });
            }
            Some(_) | None => {}
        }
        found.with_owner(node)
    }

    /// What the incident records stands above the annotations: a write that is older may have come
    /// late, after somebody took off what it tests for.
    fn add(&mut self, marks: &Marks) {
        if marks.cordon {
            self.cordon = true;
            self.cordon_pre_existing = marks.cordon_pre_existing;
        }
        self.taints.retain(|a| !marks.taints.contains(&a.taint));
        self.taints
            .extend(marks.taints.iter().map(|taint| AppliedTaint {
                taint: taint.clone(),
                pre_existing: marks.taints_pre_existing.contains(taint),
            }));
    }

    /// What is there, as an incident records it.
    pub(super) fn marks(&self, reasons: BTreeSet<String>) -> Marks {
        let before = self.taints.iter().filter(|a| a.pre_existing);
        Marks {
            cordon: self.cordon,
            cordon_pre_existing: self.cordon_pre_existing,
            taints: self.taints.iter().map(|a| a.taint.clone()).collect(),
            taints_pre_existing: before.map(|a| a.taint.clone()).collect(),
            reasons,
        }
    }

    pub(super) fn carries(&self, incident: &Incident) -> Option<u64> {
        match &self.mark {
            MarkRead::Ours(mark) if mark.incident == incident.id => Some(mark.version),
            MarkRead::Ours(_) | MarkRead::Absent | MarkRead::Unreadable | MarkRead::OtherUid => {
                None
            }
        }
    }

    /// Who holds the node, as the mark says it.
    pub(super) fn held_by(&self) -> Option<&str> {
        match &self.mark {
            MarkRead::Ours(mark) => mark.held_by.as_deref(),
            MarkRead::Absent | MarkRead::Unreadable | MarkRead::OtherUid => None,
        }
    }

    pub(super) fn marks_nothing(&self) -> bool {
        !self.cordon && self.taints.is_empty()
    }

    pub(super) fn applied(&self, taint: &Taint) -> Option<&AppliedTaint> {
        self.taints.iter().find(|a| a.taint == *taint)
    }
}

/// A cordon that the API server knows to be ours alone.
pub(super) fn has_own_cordon(node: &NodeFacts) -> bool {
    is_cordoned(node) && node.cordon_owner == CordonOwner::Us
}

pub(super) fn is_cordoned(node: &NodeFacts) -> bool {
    node.unschedulable == Some(true)
}

pub(super) fn has_taint(node: &NodeFacts, taint: &Taint) -> bool {
    taints(node).iter().any(|t| t.taint == *taint)
}

pub(super) fn taints(node: &NodeFacts) -> &[TaintRead] {
    node.taints.as_deref().unwrap_or_default()
}

/// Whether marks like ours stand on a node, our annotations do not, and nothing tells whose they
/// are: our release that arrived was followed by another's mark, or somebody took our annotations
/// off before it arrived. Another's are never removed, so they stay.
pub(super) fn may_be_left(node: &NodeFacts, incident: &Incident) -> bool {
    let unknown = node.cordon_owner == CordonOwner::Unknown;
    let bare = !node.annotations.contains_key(&Annotation::Incident);
    let left = |marks: &Marks| {
        let cordon = marks.cordon && !marks.cordon_pre_existing && is_cordoned(node) && unknown;
        let mut own = marks.taints.difference(&marks.taints_pre_existing);
        cordon || own.any(|taint| has_taint(node, taint))
    };
    bare && (left(&incident.marks) || incident.marks_before.as_ref().is_some_and(left))
}

/// Whether the node carries exactly these marks of this incident, and its annotations say so.
pub(super) fn carries_all(node: &NodeFacts, incident: &Incident, marks: &Marks) -> bool {
    let said = OnNode::annotated(node);
    let pre_existing = |a: &&AppliedTaint| a.pre_existing;
    let listed: BTreeSet<&Taint> = said.taints.iter().map(|a| &a.taint).collect();
    let before = said.taints.iter().filter(pre_existing).map(|a| &a.taint);
    said.carries(incident).is_some()
        && said.held_by() == incident.held_by.as_deref().map(hold_text).as_deref()
        && said.cordon == marks.cordon
        && said.cordon_pre_existing == marks.cordon_pre_existing
        && (!marks.cordon || is_cordoned(node))
        && listed == marks.taints.iter().collect()
        && before.collect::<BTreeSet<_>>() == marks.taints_pre_existing.iter().collect()
        && marks.taints.iter().all(|t| has_taint(node, t))
        && node.annotations.contains_key(&Annotation::HealthEvents)
}

/// What a person did to marks that were seen on the node: (uncordoned, untainted).
pub(super) fn tampering(node: &NodeFacts, on: &OnNode, incident: &Incident) -> (bool, bool) {
    use QuarantineStatus::{Applying, Quarantined};
    let carried = on.carries(incident).is_some();
    let under_way = incident.quarantine == Applying;
    let seen = incident.marks_observed && (under_way || incident.quarantine == Quarantined);
    if !carried && !seen {
        return (false, false);
    }
    // Without our annotations it may be our own change that took the cordon off.
    let kept = carried || !under_way || incident.marks.cordon;
    let uncordoned = on.cordon && !is_cordoned(node) && kept;
    let missing = |a: &AppliedTaint| !has_taint(node, &a.taint);
    (uncordoned, on.taints.iter().any(missing))
}
