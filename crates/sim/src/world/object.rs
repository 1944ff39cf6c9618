//! What others do to a node object.

use std::collections::BTreeSet;

use decide::quarantine::{Annotation, CordonOwner};
use health_event::incident::Taint;

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
                // It hides that a person has just uncordoned the node.
                site.refused = [None; 2];
                site.change_others(|others, node| {
                    let ours = node.says_cordon_is_ours() && (!node.tells_owner || unseen);
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

    /// Our mark goes: a write that was planned before it came finds what it tests for, and a
    /// controller that has never seen it does not know that its write happened.
    fn note_strip(&mut self, setup: &Setup) {
        self.stripped = true;
        let known = self.incident.as_ref().is_some_and(|i| i.marks_observed);
        if !known || self.in_flight.is_some() || !self.late.is_empty() {
            self.refused = [None; 2];
        }
        // What the controller has never seen under its mark may be anybody's from now on.
        let seen = self.incident.as_ref().filter(|_| known).map(|incident| {
            let before = incident.marks_before.as_ref();
            before.unwrap_or(&incident.marks).taints.clone()
        });
        let taint = setup.taint();
        self.change_others(|others, node| {
            let covers =
                |seen: BTreeSet<Taint>| seen.contains(&taint) || !node.taints().contains(&taint);
            others.unclear |= !seen.is_some_and(covers);
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

    /// A person uncordons the node while the incident is on it: what is open now must not take it
    /// out again. A node that is on its way back is only brought back sooner.
    fn note_refusal(&mut self, setup: &Setup, clock: u8) {
        let marked = self.node.as_ref().and_then(|node| node.mark());
        let ours = self
            .node
            .as_ref()
            .is_some_and(|node| node.says_cordon_is_ours());
        let stays = self.incident.as_ref().is_some_and(|incident| {
            use health_event::incident::QuarantineStatus as Status;
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
        if !stays || !ours || cooperating || setup.policy.manual_uncordon_hold.is_zero() {
            return;
        }
        for fault in 0..2 {
            if self.is_open(fault) {
                self.refused[fault] = Some(clock + 1);
            }
        }
    }
}
