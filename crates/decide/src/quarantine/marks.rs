//! What a node carries, what it should carry, and the write between the two.

use std::collections::{BTreeMap, BTreeSet};

use health_event::incident::{Incident, Marks, QuarantineStatus, REASSERTS, Taint};
use jiff::Timestamp;
use k8s_api::marks::{cordon_reason, hold_text, label_timestamp, uncordon_reason};
use k8s_api::names::{self, label_value};
use k8s_api::{AppliedTaint, IncidentMark};

use super::annotated::open_events;
use super::decision::{NodeWrite, Preconditions, WriteKind};
use super::derived::{remediation_state, state_with_marks};
use super::facts::{Annotation, CooperatorPolicy, Label, NodeFacts, TaintRead, View};
use super::on_node::{MarkRead, OnNode, has_taint, is_cordoned, taints};
use crate::rules::wanted;

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
        // What a write that the node does not show yet was to bring.
        if incident.quarantine == QuarantineStatus::Applying {
            marks.cordon |= incident.marks.cordon;
            marks.taints.extend(incident.marks.taints.iter().cloned());
        }
    }
    let sets = view.rules.sets().iter();
    let (cordon, taints) = wanted(sets.filter(|s| names.contains(s.config.name.as_str())));
    marks.cordon |= cordon;
    marks.taints.extend(taints);
    marks.reasons = names.into_iter().map(str::to_owned).collect();
    step_aside(view, node, on, incident, &mut marks);
    let fits = |taint: &Taint| {
        let clash = |t: &TaintRead| {
            t.taint.key == taint.key && t.taint.effect == taint.effect && t.taint != *taint
        };
        // Taints are unique by key and effect, and another owner's is not replaced.
        !taints_of_others(node, on).any(clash)
    };
    marks.taints.retain(fits);
    // What was there before us and is gone by now is ours if we put it on again, whatever an
    // annotation says.
    marks.cordon_pre_existing =
        marks.cordon && is_cordoned(node) && (!on.cordon || on.cordon_pre_existing);
    let before = |taint: &&Taint| {
        has_taint(node, taint) && on.applied(taint).is_none_or(|applied| applied.pre_existing)
    };
    marks.taints_pre_existing = marks.taints.iter().filter(before).cloned().collect();
    marks
}

/// Whether nothing asks for a mark any more although faults are open: their rule sets are gone from
/// the configuration, and what they were to bring is not known.
pub(super) fn asks_nothing(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    incident: &Incident,
) -> bool {
    let is_gone = |name: &String| view.rules.find(name).is_none();
    let mut open = incident.open_faults();
    let gone = open.all(|f| f.forced_by.is_none() && f.rules.iter().all(is_gone));
    let wanted = plan(view, node, on, incident);
    gone && incident.held_by.is_none() && !wanted.cordon && wanted.taints.is_empty()
}

/// While a cooperating controller works and has uncordoned the node, a taint of ours keeps it out
/// in the cordon's place, or, by policy `yield`, nothing does; by `reassert` the cordon comes back
/// until that was done too often.
fn step_aside(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    incident: &Incident,
    marks: &mut Marks,
) {
    let taint = &view.policy.cooperator_taint;
    let uncordoned = on.cordon && !is_cordoned(node);
    let aside = on.applied(taint).is_some();
    let working = cooperator(view, node).is_some();
    if !marks.cordon || !working {
        return;
    }
    match view.policy.cooperator_policy {
        CooperatorPolicy::Reassert if incident.reasserted.len() <= REASSERTS => {}
        CooperatorPolicy::Taint | CooperatorPolicy::Reassert if uncordoned || aside => {
            marks.cordon = false;
            marks.taints.insert(taint.clone());
        }
        // Marks without the cordon that is asked for: it was given up before.
        CooperatorPolicy::Yield
            if uncordoned || (matches!(on.mark, MarkRead::Ours(_)) && !on.cordon) =>
        {
            marks.cordon = false;
        }
        CooperatorPolicy::Taint | CooperatorPolicy::Reassert | CooperatorPolicy::Yield => {}
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
        held_by: incident.held_by.as_deref().map(hold_text),
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
    let state = state_with_marks(view, node, incident);
    if node.labels.get(&Label::State).is_none_or(|is| is != state) {
        draft.labels.insert(Label::State, Some(state.to_owned()));
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
    let repair = view
        .incident
        .and_then(|incident| remediation_state(incident, view.policy));
    if repair.is_some() && node.annotations.get(&Annotation::RemediationState) == repair.as_ref() {
        draft.remove_annotation(node, Annotation::RemediationState);
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
    let mut write = draft.finish(node, kind);
    // A late write of ours may put back a cordon or a taint that a person took off: this one must then
    // fail, or it would take the annotations from it. So may one that was given up put on what was not seen
    // yet, and somebody take its annotations off.
    let planned = view.incident.map(|incident| &incident.marks);
    if on.cordon || planned.is_some_and(|marks| marks.cordon) {
        write.test.unschedulable = Some(node.unschedulable);
    }
    let own = |marks: &Marks| !marks.taints.is_subset(&marks.taints_pre_existing);
    if on.taints.iter().any(|applied| !applied.pre_existing) || planned.is_some_and(own) {
        write.test.taints = Some(node.taints.clone());
    }
    write
}
