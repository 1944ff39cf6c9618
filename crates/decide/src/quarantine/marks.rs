//! What a node carries, what it should carry, and the write between the two.

use std::collections::{BTreeMap, BTreeSet};

use health_event::HealthEvent;
use health_event::incident::{Incident, Marks, QuarantineStatus, Taint};
use jiff::Timestamp;
use k8s_api::marks::{cordon_reason, label_timestamp, uncordon_reason};
use k8s_api::names::{self, label_value};
use k8s_api::{AppliedTaint, IncidentMark};

use super::decision::{NodeWrite, Preconditions, WriteKind};
use super::facts::{Annotation, CooperatorPolicy, FaultFacts, Label, NodeFacts, TaintRead, View};
use crate::rules::wanted;

/// The mark, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MarkRead {
    Absent,
    Unreadable,
    OtherUid,
    Ours(IncidentMark),
}

/// Our marks on a node, as its annotations record them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OnNode {
    pub(super) mark: MarkRead,
    pub(super) cordon: bool,
    pub(super) cordon_pre_existing: bool,
    pub(super) taints: Vec<AppliedTaint>,
}

impl OnNode {
    pub(super) fn read(node: &NodeFacts) -> Self {
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

    /// What is ours on the node of this incident. If our annotations were taken off a node that
    /// is known to carry our marks, the incident's own record stands in for them.
    pub(super) fn of_incident(node: &NodeFacts, incident: &Incident) -> Self {
        let read = Self::read(node);
        let known = incident.marks_observed && incident.quarantine.is_out();
        if matches!(read.mark, MarkRead::Ours(_)) || !known {
            return read;
        }
        let marks = &incident.marks;
        let applied = |taint: &Taint| AppliedTaint {
            taint: taint.clone(),
            pre_existing: marks.taints_pre_existing.contains(taint),
        };
        Self {
            mark: read.mark,
            cordon: marks.cordon,
            cordon_pre_existing: marks.cordon_pre_existing,
            taints: marks.taints.iter().map(applied).collect(),
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

    pub(super) fn marks_nothing(&self) -> bool {
        !self.cordon && self.taints.is_empty()
    }

    fn applied(&self, taint: &Taint) -> Option<&AppliedTaint> {
        self.taints.iter().find(|a| a.taint == *taint)
    }
}

pub(super) fn is_cordoned(node: &NodeFacts) -> bool {
    node.unschedulable == Some(true)
}

pub(super) fn has_taint(node: &NodeFacts, taint: &Taint) -> bool {
    taints(node).iter().any(|t| t.taint == *taint)
}

fn taints(node: &NodeFacts) -> &[TaintRead] {
    node.taints.as_deref().unwrap_or_default()
}

/// A cooperating controller at work on the node: its key.
pub(super) fn cooperator<'a>(view: &View<'a>, node: &NodeFacts) -> Option<&'a str> {
    let at_work = |key: &str, working: &BTreeSet<String>| {
        let value = node.cooperator_values.get(key);
        value.is_some_and(|v| working.is_empty() || working.contains(v))
    };
    let cooperators = view.policy.cooperators.iter();
    cooperators
        .filter(|c| at_work(&c.key, &c.working))
        .map(|c| c.key.as_str())
        .next()
}

/// The marks that the open faults of an incident ask for, on this node.
pub(super) fn plan(view: &View<'_>, node: &NodeFacts, on: &OnNode, incident: &Incident) -> Marks {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut marks = Marks::default();
    for fault in incident.open_faults() {
        names.extend(fault.rules.iter().map(String::as_str));
        marks.cordon |= fault.forced_by.is_some();
    }
    marks.cordon |= incident.held_by.is_some();
    // A rule set that is gone from the configuration still asks for what it has brought.
    if names.iter().any(|name| view.rules.find(name).is_none()) {
        marks.cordon |= on.cordon;
        marks
            .taints
            .extend(on.taints.iter().map(|a| a.taint.clone()));
    }
    let sets = view.rules.sets().iter();
    let (cordon, taints) = wanted(sets.filter(|s| names.contains(s.config.name.as_str())));
    marks.cordon |= cordon;
    marks.taints.extend(taints);
    marks.reasons = names.into_iter().map(str::to_owned).collect();
    step_aside(view, node, on, &mut marks);
    let fits = |taint: &Taint| {
        let clash = |t: &TaintRead| {
            t.taint.key == taint.key && t.taint.effect == taint.effect && t.taint != *taint
        };
        // Taints are unique by key and effect, and another owner's is not replaced.
        !taints_of_others(node, on).any(clash)
    };
    marks.taints.retain(fits);
    marks.cordon_pre_existing = marks.cordon
        && if on.cordon {
            on.cordon_pre_existing
        } else {
            is_cordoned(node)
        };
    let before = |taint: &&Taint| match on.applied(taint) {
        Some(applied) => applied.pre_existing,
        None => has_taint(node, taint),
    };
    marks.taints_pre_existing = marks.taints.iter().filter(before).cloned().collect();
    marks
}

/// While a cooperating controller works and has uncordoned the node, a taint of ours keeps it out
/// in the cordon's place.
fn step_aside(view: &View<'_>, node: &NodeFacts, on: &OnNode, marks: &mut Marks) {
    let taint = &view.policy.cooperator_taint;
    let uncordoned = on.cordon && !is_cordoned(node);
    let aside = on.applied(taint).is_some();
    let working = cooperator(view, node).is_some();
    let by_taint = view.policy.cooperator_policy == CooperatorPolicy::Taint;
    if marks.cordon && working && by_taint && (uncordoned || aside) {
        marks.cordon = false;
        marks.taints.insert(taint.clone());
    }
}

fn taints_of_others<'a>(
    node: &'a NodeFacts,
    on: &'a OnNode,
) -> impl Iterator<Item = &'a TaintRead> {
    taints(node)
        .iter()
        .filter(|t| on.applied(&t.taint).is_none_or(|a| a.pre_existing))
}

/// Whether the node carries exactly these marks.
pub(super) fn carries_all(node: &NodeFacts, on: &OnNode, marks: &Marks) -> bool {
    let listed: BTreeSet<&Taint> = on.taints.iter().map(|a| &a.taint).collect();
    on.cordon == marks.cordon
        && (!marks.cordon || is_cordoned(node))
        && listed == marks.taints.iter().collect()
        && marks.taints.iter().all(|t| has_taint(node, t))
}

struct Draft {
    unschedulable: Option<bool>,
    taints: Option<Vec<TaintRead>>,
    annotations: BTreeMap<Annotation, Option<String>>,
    labels: BTreeMap<Label, Option<String>>,
}

impl Draft {
    fn remove_annotation(&mut self, node: &NodeFacts, key: Annotation) {
        if node.annotations.contains_key(&key) {
            self.annotations.insert(key, None);
        }
    }

    fn remove_label(&mut self, node: &NodeFacts, key: Label) {
        if node.labels.contains_key(&key) {
            self.labels.insert(key, None);
        }
    }

    fn set(&mut self, key: Annotation, wanted: bool, node: &NodeFacts) {
        if wanted {
            self.annotations.insert(key, Some(names::TRUE.to_owned()));
        } else {
            self.remove_annotation(node, key);
        }
    }

    fn finish(self, node: &NodeFacts, kind: WriteKind) -> NodeWrite {
        NodeWrite {
            node: node.name.clone(),
            kind,
            test: Preconditions {
                uid: node.uid.clone(),
                incident: node.annotations.get(&Annotation::Incident).cloned(),
                unschedulable: self.unschedulable.map(|_| node.unschedulable),
                taints: self.taints.as_ref().map(|_| node.taints.clone()),
                annotations_absent: node.annotations_absent,
                labels_absent: node.labels_absent,
            },
            unschedulable: self.unschedulable,
            taints: self.taints,
            annotations: self.annotations,
            labels: self.labels,
            health_events: None,
        }
    }
}

/// Cordon and taints brought to what `marks` says, others' left as they are.
fn draft(node: &NodeFacts, on: &OnNode, marks: &Marks) -> Draft {
    let unschedulable = if marks.cordon && !is_cordoned(node) {
        Some(true)
    } else if !marks.cordon && on.cordon && !on.cordon_pre_existing && is_cordoned(node) {
        Some(false)
    } else {
        None
    };
    let mut list: Vec<TaintRead> = taints(node)
        .iter()
        .filter(|t| {
            let ours = on.applied(&t.taint).is_some_and(|a| !a.pre_existing);
            !ours || marks.taints.contains(&t.taint)
        })
        .cloned()
        .collect();
    for taint in &marks.taints {
        if !has_taint(node, taint) {
            list.push(TaintRead {
                taint: taint.clone(),
                time_added: None,
            });
        }
    }
    let changed = list != taints(node);
    Draft {
        unschedulable,
        taints: changed.then_some(list),
        annotations: BTreeMap::new(),
        labels: BTreeMap::new(),
    }
}

/// The write that brings the marks of an incident onto its node.
pub(super) fn apply(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    incident: &Incident,
    now: Timestamp,
) -> NodeWrite {
    let marks = &incident.marks;
    let mut draft = draft(node, on, marks);
    let mark = IncidentMark {
        incident: incident.id.clone(),
        version: incident.version,
        node_uid: node.uid.clone(),
    };
    draft
        .annotations
        .insert(Annotation::Incident, Some(mark.render()));
    draft.set(Annotation::IsCordoned, marks.cordon, node);
    draft.set(
        Annotation::CordonPreExisting,
        marks.cordon_pre_existing,
        node,
    );
    if marks.taints.is_empty() {
        draft.remove_annotation(node, Annotation::AppliedTaints);
    } else {
        let applied: Vec<AppliedTaint> = marks
            .taints
            .iter()
            .map(|taint| AppliedTaint {
                taint: taint.clone(),
                pre_existing: marks.taints_pre_existing.contains(taint),
            })
            .collect();
        let text = AppliedTaint::render_list(&applied);
        draft
            .annotations
            .insert(Annotation::AppliedTaints, Some(text));
    }
    draft.remove_annotation(node, Annotation::UncordonedManually);
    draft.remove_annotation(node, Annotation::UntaintedManually);
    label_cordon(view, node, on, incident, now, &mut draft);
    if !node.labels.contains_key(&Label::State) {
        draft
            .labels
            .insert(Label::State, Some(names::STATE_QUARANTINED.to_owned()));
    }
    let first = on.carries(incident).is_none();
    let kind = if first {
        WriteKind::Apply
    } else {
        WriteKind::Update
    };
    let mut write = draft.finish(node, kind);
    write.health_events = Some(open_events(view.faults, incident));
    write
}

fn label_cordon(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    incident: &Incident,
    now: Timestamp,
    draft: &mut Draft,
) {
    let keys = [Label::CordonBy, Label::CordonReason, Label::CordonTimestamp];
    if !incident.marks.cordon || incident.marks.cordon_pre_existing {
        for key in keys {
            draft.remove_label(node, key);
        }
        return;
    }
    let forced = incident.open_faults().find_map(|f| {
        let by = f.forced_by.as_deref()?;
        let fact = view.faults.iter().find(|fact| fact.id == f.id)?;
        Some((by, fact.event.message.as_str()))
    });
    let by = forced.map_or(view.policy.cordon_by.as_str(), |(by, _)| by);
    let message = forced.map(|(_, message)| message).filter(|m| !m.is_empty());
    let held = incident.held_by.as_deref().map(|_| "hold");
    let rules = incident.marks.reasons.iter().map(String::as_str);
    let reason = cordon_reason(message.into_iter().chain(held).chain(rules));
    draft.labels.insert(Label::CordonBy, Some(label_value(by)));
    draft.labels.insert(Label::CordonReason, Some(reason));
    let since = node
        .labels
        .get(&Label::CordonTimestamp)
        .filter(|_| on.cordon);
    let since = since.cloned().unwrap_or_else(|| label_timestamp(now));
    draft.labels.insert(Label::CordonTimestamp, Some(since));
}

/// The write that takes all our marks off. `record` is left behind after a person acted.
pub(super) fn take_off(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    kind: WriteKind,
    records: &[Annotation],
    now: Timestamp,
) -> NodeWrite {
    let mut draft = draft(node, on, &Marks::default());
    for key in [
        Annotation::Incident,
        Annotation::HealthEvents,
        Annotation::AppliedTaints,
        Annotation::IsCordoned,
        Annotation::CordonPreExisting,
    ] {
        draft.remove_annotation(node, key);
    }
    for key in [
        Label::CordonBy,
        Label::CordonReason,
        Label::CordonTimestamp,
        Label::State,
    ] {
        draft.remove_label(node, key);
    }
    for record in records {
        draft
            .annotations
            .insert(*record, Some(names::TRUE.to_owned()));
    }
    if draft.unschedulable == Some(false) {
        let set = |text: String| Some(text);
        draft
            .labels
            .insert(Label::UncordonBy, set(view.policy.cordon_by.clone()));
        draft
            .labels
            .insert(Label::UncordonTimestamp, set(label_timestamp(now)));
        let reason = node.labels.get(&Label::CordonReason);
        match reason.and_then(|reason| uncordon_reason(reason)) {
            Some(reason) => drop(draft.labels.insert(Label::UncordonReason, Some(reason))),
            None => draft.remove_label(node, Label::UncordonReason),
        }
    }
    draft.finish(node, kind)
}

/// What annotation `quarantineHealthEvent` shall say: one element per event, oldest first, with
/// only the entities and codes still open. An event whose open parts are no full product of
/// entities and codes gives one element for each group of codes that share their entities.
pub fn open_events(faults: &[FaultFacts], incident: &Incident) -> Vec<HealthEvent> {
    let open: BTreeSet<_> = incident.open_faults().map(|f| &f.id).collect();
    let mut events: BTreeMap<u64, Vec<&FaultFacts>> = BTreeMap::new();
    for fault in faults.iter().filter(|f| open.contains(&f.id)) {
        events.entry(fault.seq).or_default().push(fault);
    }
    events
        .into_values()
        .flat_map(|parts| elements(&parts))
        .collect()
}

fn elements(parts: &[&FaultFacts]) -> Vec<HealthEvent> {
    let mut by_code: BTreeMap<&str, Vec<&FaultFacts>> = BTreeMap::new();
    for part in parts {
        by_code.entry(&part.id.key.code).or_default().push(part);
    }
    let mut groups: BTreeMap<BTreeSet<&str>, (Vec<&str>, Vec<&FaultFacts>)> = BTreeMap::new();
    for (code, faults) in by_code {
        let devices = faults.iter().map(|f| f.id.key.device.as_str()).collect();
        let group = groups.entry(devices).or_default();
        group.0.push(code);
        group.1 = faults;
    }
    groups
        .into_values()
        .map(|(codes, faults)| element(&codes, &faults))
        .collect()
}

fn element(codes: &[&str], faults: &[&FaultFacts]) -> HealthEvent {
    let mut event = faults[0].event.clone();
    let known = |e: &health_event::Entity| faults.iter().any(|f| f.device.entities().contains(e));
    event.entities.retain(known);
    if event.entities.is_empty() {
        let devices = faults.iter().flat_map(|f| f.device.entities());
        event.entities = devices.cloned().collect();
    }
    event
        .error_codes
        .retain(|code| codes.contains(&code.as_str()));
    event
}

/// What a person did to marks that were seen on the node.
pub(super) fn tampering(node: &NodeFacts, on: &OnNode, incident: &Incident) -> (bool, bool) {
    let seen = on.carries(incident).is_some()
        || (incident.marks_observed && incident.quarantine == QuarantineStatus::Quarantined);
    let uncordoned = seen && on.cordon && !is_cordoned(node);
    let untainted = seen && on.taints.iter().any(|a| !has_taint(node, &a.taint));
    (uncordoned, untainted)
}
