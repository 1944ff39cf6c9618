//! Which steps are possible.

use super::cluster::{Cordon, Node, OURS};
use super::setup::boot_id;
use super::step::MOST_LATE;
use super::{Setup, Site, Step, Voice, What, World};

impl World {
    /// Every step that is possible now, in a fixed order.
    pub fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        for what in What::ALL {
            if what.is_bounded() && self.left[what.index()] == 0 {
                continue;
            }
            let nodes = if what.is_global() {
                1
            } else {
                self.sites.len()
            };
            for node in 0..nodes {
                for fault in 0..what.ways(setup) {
                    let step = Step { what, node, fault };
                    if self.is_possible(setup, step) {
                        steps.push(step);
                    }
                }
            }
        }
    }

    #[expect(clippy::match_same_arms, reason = "a table: each group has its reason")]
    fn is_possible(&self, setup: &Setup, step: Step) -> bool {
        let site = &self.sites[step.node];
        match step.what {
            What::SwitchMode => true,
            // Each of these is only told apart from nothing while there is something to lose.
            What::Tick => self.sites.iter().any(Site::has_history),
            What::Crash => self.sites.iter().any(Site::has_memory),
            What::LoseStore => self.sites.iter().any(Site::has_history),
            What::Reset => self
                .breaker
                .pools
                .get("gpu")
                .is_some_and(|pool| pool.tripped.is_some()),
            // What the watch shows while the worker waits is looked at after that.
            What::Watch => site.in_flight.is_none() && (site.node != site.cache || site.accepted),
            // The worker waits for its write; and a lost node is read directly.
            What::Decide => {
                site.in_flight.is_none()
                    && (site.cache.is_some() || (site.node.is_none() && site.incident.is_some()))
            }
            What::Arrive => site.in_flight.is_some(),
            What::TimeOut => site.in_flight.is_some() && site.late.len() < MOST_LATE,
            What::ArriveLate => step.fault < site.late.len(),
            What::Report => site.has_to_report(self),
            What::Settle => site.agent == Voice::Starting && site.known.started_at.is_some(),
            What::Break => site.node.is_some() && !site.truth[step.fault],
            What::Heal => site.truth[step.fault] && site.is_open(step.fault),
            What::Repeat => site.said[step.fault].raised.is_some() && !site.is_open(step.fault),
            What::Reboot => true,
            What::AgentRestart => site.agent != Voice::New,
            What::Hold | What::Release | What::Cancel | What::Drop => site.request.is_none(),
            What::Delete => site.node.is_some(),
            What::Register => site.node.is_none(),
            What::RegisterOther => site.node.is_none() && site.machine == 0,
            What::RegisterCopy => site.node.is_none() && site.copy.is_some(),
            What::ShowBoot
            | What::Uncordon
            | What::Untaint
            | What::Cordon
            | What::ForeignTaint
            | What::ForeignUntaint
            | What::SameTaint
            | What::Strip
            | What::StripOne
            | What::OptOut
            | What::Pause
            | What::Cooperate
            | What::CooperatorUncordon => site
                .node
                .as_ref()
                .is_some_and(|node| site.is_possible(setup, step, node)),
        }
    }
}

impl Site {
    /// The store holds more than the agent would bring at once.
    fn has_history(&self) -> bool {
        let holds = self.holds.iter().any(|holds| !holds.is_empty());
        self.incident.is_some() || !self.closed.is_empty() || holds
    }

    /// The controller knows something that a restart forgets.
    fn has_memory(&self) -> bool {
        let behind = self.node != self.cache || self.accepted;
        behind || self.in_flight.is_some() || self.request.is_some()
    }

    /// The agent has something new to say, or a new store or a new day to say it to.
    fn has_to_report(&self, world: &World) -> bool {
        let fresh = self.known.last_report_at.is_some_and(|at| {
            at.as_second() >= super::setup::TICK.as_secs() * i64::from(world.clock)
        });
        let unsaid = match self.agent {
            Voice::New => true,
            Voice::Starting => self.known.started_at.is_none(),
            Voice::Settled => self.known.settled_for.is_none(),
        };
        // Into an empty store the node's status brings the boot first, as the kubelet shows it before
        // it starts the agent: an older boot that came after it would count as the newer.
        let shows = self
            .cache
            .as_ref()
            .is_some_and(|node| self.shows_boot(node));
        let ordered = shows || !self.boots[self.machine].as_slice().is_empty();
        ordered && (unsaid || !fresh)
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "all other kinds only need the object"
    )]
    fn is_possible(&self, setup: &Setup, step: Step, node: &Node) -> bool {
        let ours = || {
            self.incident.as_ref().is_some_and(|incident| {
                use health_event::incident::QuarantineStatus as Status;
                incident.quarantine == Status::Quarantined && incident.marks_observed
            })
        };
        match step.what {
            What::Uncordon => node.is_cordoned(),
            What::Cordon => !node.is_cordoned(),
            What::CooperatorUncordon => {
                node.is_cordoned() && !node.facts.cooperator_values.is_empty()
            }
            What::Untaint => node.taints().iter().any(|t| t.key == "example.com/ours"),
            What::ForeignTaint => !self
                .others
                .taints
                .iter()
                .any(|t| t.key == "example.com/foreign"),
            What::ForeignUntaint => self
                .others
                .taints
                .iter()
                .any(|t| t.key == "example.com/foreign"),
            What::SameTaint => {
                !self.claims_taint(&setup.taint()) && !node.taints().contains(&setup.taint())
            }
            What::StripOne => node.facts.annotations.contains_key(&OURS[step.fault]),
            What::Strip if node.tells_owner => node.mark().is_some(),
            // Annotations that the controller has never seen there leave it no way to know that the
            // cordon is its own.
            What::Strip => ours() && node.mark().is_some() && self.others.cordon != Cordon::Unclear,
            What::ShowBoot => node.facts.boot != boot_id(self.machine, self.boot),
            _ => true,
        }
    }
}
