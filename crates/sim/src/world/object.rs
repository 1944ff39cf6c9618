//! What others do to a node object.

use std::collections::BTreeSet;

use decide::quarantine::{Annotation, CordonOwner, NodeWrite, RequestKind, TaintRead};
use health_event::incident::{IncidentFault, Marks, QuarantineStatus, Taint};
use k8s_api::AppliedTaint;

use super::cluster::{Cordon, LABELS, Node, OURS, Others};
use super::setup::{COOPERATOR, boot_id, registered};
use super::{Kept, Setup, Site, Step, Voice, What, World};

impl Step {
    /// The node object, by anyone but us.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller hands on only the kinds named here"
    )]
    pub(super) fn object(self, setup: &Setup, world: &mut World) {
        let clock = world.clock;
        let site = &mut world.sites[self.node];
        match self.what {
            What::Delete | What::Register | What::RegisterOther | What::RegisterCopy => {
                self.lifecycle(setup, site);
            }
            What::Uncordon => {
                site.note_refusal(setup, clock);
                site.change_others(|others, _| others.cordon = Cordon::No);
                site.change_node(|node| node.set_cordon(false));
            }
            What::CooperatorUncordon => {
                site.change_others(|others, _| others.cordon = Cordon::No);
                site.change_node(|node| node.set_cordon(false));
            }
            What::Cordon => {
                // A patch can test that the node is cordoned, not by whom.
                let unseen = site.is_uncordoning() || site.shows_cordon();
                let known = site.stripped || site.may_take_off();
                // It hides that a person has just uncordoned the node.
                site.refused = [None; 2];
                site.change_others(|others, node| {
                    let said = known || node.says_cordon_is_ours();
                    let ours = said && (!node.tells_owner || unseen);
                    others.cordon = if ours { Cordon::Unclear } else { Cordon::Yes };
                });
                site.change_node(|node| node.set_cordon(true));
            }
            What::ForeignTaint | What::SameTaint => {
                let foreign = self.what == What::ForeignTaint;
                let taint = if foreign {
                    setup.foreign_taint()
                } else {
                    setup.taint()
                };
                site.change_others(|others, _| {
                    others.taints.insert(taint.clone());
                });
                site.change_node(|node| node.taint(&taint));
            }
            What::ForeignUntaint | What::Untaint => {
                let foreign = self.what == What::ForeignUntaint;
                let taint = if foreign {
                    setup.foreign_taint()
                } else {
                    setup.taint()
                };
                site.change_others(|others, _| {
                    others.taints.remove(&taint);
                });
                site.change_node(|node| node.untaint(&taint));
            }
            What::Strip => {
                site.note_strip(setup);
                if !setup.tells_owner {
                    // With our mark gone its tests would pass again, long after we left.
                    site.late.clear();
                }
                site.change_node(|node| {
                    for key in OURS {
                        node.facts.annotations.remove(&key);
                    }
                    for key in LABELS {
                        node.facts.labels.remove(&key);
                    }
                    node.events.clear();
                });
            }
            What::StripOne => {
                let key = OURS[self.fault];
                if matches!(key, Annotation::Incident | Annotation::AppliedTaints) {
                    site.note_strip(setup);
                }
                site.change_node(|node| {
                    node.facts.annotations.remove(&key);
                    if key == Annotation::HealthEvents {
                        node.events.clear();
                    }
                });
            }
            What::OptOut => site.change_node(|node| node.facts.opted_out = !node.facts.opted_out),
            What::Pause => site.change_node(|node| node.facts.paused = !node.facts.paused),
            What::Cooperate => site.change_node(|node| {
                let values = &mut node.facts.cooperator_values;
                if values.remove(COOPERATOR).is_none() {
                    values.insert(COOPERATOR.to_owned(), "working".to_owned());
                }
            }),
            What::ShowBoot => {
                let boot = boot_id(site.machine, site.boot);
                site.change_node(|node| node.facts.boot = boot);
            }
            _ => unreachable!("no step of a node object: {self:?}"),
        }
    }

    /// The object goes and comes.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller hands on only the kinds named here"
    )]
    fn lifecycle(self, setup: &Setup, site: &mut Site) {
        match self.what {
            What::Delete => {
                let kept = setup.limits.contains_key(&What::RegisterCopy);
                let node = site.node.take().filter(|_| kept);
                site.copy = node.map(|node| (node, site.others.clone()));
                site.others = Kept::default();
                site.refused = [None; 2];
                site.stripped = false;
                site.forget_hold();
            }
            What::Register | What::RegisterOther => {
                if self.what == What::RegisterOther {
                    site.machine = 1;
                    site.boot = 0;
                    site.truth = [false; 2];
                    site.agent = Voice::New;
                }
                site.uids += 1;
                site.refused = [None; 2];
                let facts = registered(setup, self.node, site.uids, site.machine, site.boot);
                site.node = Some(Kept::new(Node {
                    facts,
                    events: Vec::new(),
                    tells_owner: setup.tells_owner,
                }));
            }
            // All that the object carried comes back, in the name of whoever brings it.
            What::RegisterCopy => {
                site.uids += 1;
                site.refused = [None; 2];
                if let Some((node, others)) = site.copy.take() {
                    let mut node = (*node).clone();
                    node.facts.uid = format!("uid-{}-{}", self.node, site.uids);
                    let cordoned = node.is_cordoned();
                    node.set_cordon(cordoned);
                    site.node = Some(Kept::new(node));
                    site.others = others;
                }
            }
            _ => unreachable!("no end or beginning of a node object: {self:?}"),
        }
    }
}

impl Site {
    fn change_node(&mut self, change: impl FnOnce(&mut Node)) {
        if let Some(node) = &mut self.node {
            node.change(change);
        }
        self.forget_hold();
    }

    /// Where the store was lost, only the mark on the object says that a person holds it.
    pub(super) fn forget_hold(&mut self) {
        let mark = self.node.as_ref().and_then(|node| node.mark());
        self.held &= self.incident.is_some() || mark.is_some_and(|mark| mark.held_by.is_some());
    }

    /// Whether a taint like ours that somebody puts on now is ours, for all that anybody can tell:
    /// our annotations list it; or those went without the controller's doing (somebody took them off,
    /// or a write of a process that lost its store) and the open incident still knows of it, or the
    /// node's cache will open one by them; or a write that is under way takes it off, or says so
    /// without putting it on.
    pub(super) fn claims_taint(&self, taint: &Taint) -> bool {
        if self.node.as_ref().is_some_and(|node| node.mark().is_some()) {
            return true;
        }
        let own = |marks: &Marks| {
            marks.taints.contains(taint) && !marks.taints_pre_existing.contains(taint)
        };
        let known = self.incident.as_ref().filter(|incident| {
            let leaves = matches!(incident.quarantine, QuarantineStatus::Releasing(_));
            self.stripped || (incident.marks_observed && !leaves)
        });
        let known = known.is_some_and(|incident| {
            own(&incident.marks) || incident.marks_before.as_ref().is_some_and(own)
        });
        let seen = self.cache.as_ref().and_then(|node| node.mark());
        let unknown = seen.is_some_and(|mark| !self.closed.contains(&mark.incident));
        let adopts = self.incident.is_none() && unknown;
        let has = |list: &[TaintRead]| list.iter().any(|read| read.taint == *taint);
        let mut sent = self.in_flight.iter().chain(&self.late);
        known
            || adopts
            || sent.any(|write| {
                let tested = write.test.taints.iter().flatten().any(|list| has(list));
                let takes = tested && write.taints.as_ref().is_some_and(|list| !has(list));
                let listed = write.annotations.get(&Annotation::AppliedTaints);
                let says = listed.and_then(|text| AppliedTaint::parse_list(text.as_deref()?).ok());
                let mut says = says.into_iter().flatten();
                let says = says.any(|a| a.taint == *taint && !a.pre_existing);
                takes || (write.taints.is_none() && says)
            })
    }

    /// Whether a write that uncordons the node is under way.
    fn is_uncordoning(&self) -> bool {
        let mut sent = self.in_flight.iter().chain(&self.late);
        sent.any(|write| write.unschedulable == Some(false))
    }

    /// The controller's cache shows a cordon, be it an older one.
    fn shows_cordon(&self) -> bool {
        self.cache.as_ref().is_some_and(|node| node.is_cordoned())
    }

    /// Whether a write takes off a cordon that somebody puts on now: one that is under way, or that is
    /// decided before the watch shows that the controller's own is gone.
    fn may_take_off(&self) -> bool {
        let Some(mut cordoned) = self.node.as_deref().cloned() else {
            return false;
        };
        cordoned.set_cordon(true);
        let mut sent = self.in_flight.iter().chain(&self.late);
        let passes = |write: &NodeWrite| cordoned.patched(write).is_ok();
        if sent.any(|write| write.unschedulable == Some(false) && passes(write)) {
            return true;
        }
        let mark = |node: &Node| node.facts.annotations.get(&Annotation::Incident).cloned();
        let cache = self.cache.as_deref();
        cache.is_some_and(|cache| {
            let own = cache.facts.cordon_owner == CordonOwner::Us;
            own && cache.is_cordoned() && mark(cache) == mark(&cordoned)
        })
    }

    /// Our mark goes: a write that was planned before it came finds what it tests for, and a
    /// controller that has never seen it does not know that its write happened.
    fn note_strip(&mut self, setup: &Setup) {
        self.stripped = true;
        let known = self.incident.as_ref().is_some_and(|i| i.marks_observed);
        // Nor one that has never seen a cordon under the mark, or, in the midst of a change that takes it
        // off, whose doing it is that there is none.
        let unseen = self.incident.as_ref().is_some_and(|i| {
            let seen = i.marks_before.as_ref().unwrap_or(&i.marks).cordon;
            let takes_off = i.quarantine == QuarantineStatus::Applying && !i.marks.cordon;
            !seen || takes_off
        });
        if !known || unseen || self.in_flight.is_some() || !self.late.is_empty() {
            self.refused = [None; 2];
        }
        // What the controller has never seen under its mark may be anybody's from now on.
        let seen = self.incident.as_ref().filter(|_| known).map(|incident| {
            let before = incident.marks_before.as_ref();
            before.unwrap_or(&incident.marks).taints.clone()
        });
        let ours = [setup.taint(), setup.policy.cooperator_taint.clone()];
        let marked = self.node.as_ref().and_then(|node| node.mark());
        let closed = marked.is_some_and(|mark| self.closed.contains(&mark.incident));
        if self.incident.is_none() && !closed {
            self.nobody_knows();
        }
        self.change_others(|others, node| {
            let there = node.taints();
            let covers = |seen: BTreeSet<Taint>| {
                let mut there = ours.iter().filter(|taint| there.contains(taint));
                there.all(|taint| seen.contains(taint))
            };
            others.unclear |= !seen.is_some_and(covers);
        });
    }

    /// The store was lost, and our annotations were taken off: what is on the node may be anybody's.
    /// A cordon of ours stays until a fault or a person takes it over.
    pub(super) fn nobody_knows(&mut self) {
        self.change_others(|others, node| {
            if node.is_cordoned() && others.cordon == Cordon::No {
                others.cordon = Cordon::Unclear;
            }
            others.unclear = true;
        });
    }

    /// The controller sees the object as it is.
    pub(super) fn see(&mut self) {
        self.cache.clone_from(&self.node);
        self.accepted = false;
        let others = self.node.as_ref().is_some_and(|node| {
            node.is_cordoned() && node.facts.cordon_owner == CordonOwner::Others
        });
        if others && !self.is_uncordoning() && self.others.cordon == Cordon::Unclear {
            self.others.change(|others| others.cordon = Cordon::Yes);
        }
    }

    fn change_others(&mut self, change: impl FnOnce(&mut Others, &Node)) {
        if let Some(node) = &self.node {
            let node = node.clone();
            self.others.change(|others| change(others, &node));
        }
    }

    /// Whether a fault of the incident is open, or a person holds the node. Where it has opted out,
    /// one that closed and opened again does not join.
    fn stays_out(&self) -> bool {
        let opted_out = |node: &Option<Kept<Node>>| node.iter().any(|n| n.facts.opted_out);
        let opted_out = opted_out(&self.node) || opted_out(&self.cache);
        let open = |fault: &IncidentFault| {
            let mut facts = self.open.0.iter().filter(|fact| fact.id == fault.id);
            facts.any(|fact| fault.seq == 0 || fact.seq == fault.seq || !opted_out)
        };
        // Whoever has asked for the end of a hold brings the node back.
        let request = self.request.as_ref().map(|request| request.kind);
        let releases = request == Some(RequestKind::Release);
        self.incident
            .as_ref()
            .is_some_and(|i| (i.held_by.is_some() && !releases) || i.open_faults().any(open))
    }

    /// A person uncordons the node while the incident is on it: what is open now must not take it
    /// out again. A node that is on its way back, be it that the controller has yet to look, is only
    /// brought back sooner.
    fn note_refusal(&mut self, setup: &Setup, clock: u8) {
        let marked = self.node.as_ref().and_then(|node| node.mark());
        let ours = self
            .node
            .as_ref()
            .is_some_and(|node| node.says_cordon_is_ours());
        let stays = self.incident.as_ref().is_some_and(|incident| {
            use QuarantineStatus as Status;
            let here = marked.is_some_and(|mark| mark.incident == incident.id);
            here && match incident.quarantine {
                Status::Applying | Status::Quarantined => true,
                Status::Withheld(_)
                | Status::Observed
                | Status::Releasing(_)
                | Status::Closed(_) => false,
            }
        });
        let cooperating = self
            .node
            .as_ref()
            .is_some_and(|n| !n.facts.cooperator_values.is_empty());
        if !stays
            || !self.stays_out()
            || !ours
            || cooperating
            || setup.policy.manual_uncordon_hold.is_zero()
        {
            return;
        }
        for fault in 0..2 {
            if self.is_open(fault) {
                self.refused[fault] = Some(clock + 1);
            }
        }
    }
}
