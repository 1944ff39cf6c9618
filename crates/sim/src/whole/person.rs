//! What a person does.

use decide::quarantine::RequestKind;

use super::{Power, Reboot, Setup, World, fresh_node, remediation};
use crate::world::Kept;
use crate::world::setup::request;

impl World {
    /// Uncordons the node.
    pub(super) fn uncordon(&mut self) -> bool {
        let Some(node) = self.node.as_mut().filter(|node| node.is_cordoned()) else {
            return false;
        };
        node.change(|node| node.set_cordon(false));
        true
    }

    /// Asks for the end of the incident.
    pub(super) fn cancel(&mut self) -> bool {
        self.memory.request = Some(Kept::new(request(RequestKind::Cancel)));
        true
    }

    /// Pauses the node, or ends that.
    pub(super) fn pause(&mut self) -> bool {
        let Some(node) = &mut self.node else {
            return false;
        };
        node.change(|node| node.facts.paused = !node.facts.paused);
        true
    }

    /// Deletes the node object: what it owns goes along.
    pub(super) fn delete_node(&mut self, setup: &Setup) -> bool {
        self.node = None;
        let owned = |reboot: &Kept<Reboot>| reboot.owner.is_some();
        while let Some(index) = self.reboots.iter().position(owned) {
            self.delete_reboot(setup, index);
        }
        // Pods of a node that is gone are collected.
        self.pods.clear();
        true
    }

    /// The machine registers anew.
    pub(super) fn register(&mut self, setup: &Setup) -> bool {
        let mut node = fresh_node(setup, self.uids, self.boot);
        node.facts.ready = self.power == Power::Up;
        self.uids += 1;
        self.node = Some(Kept::new(node));
        let present = self.boot;
        self.signals.retain(|signal| signal.boot == present);
        true
    }

    /// Makes a `RebootNode`.
    pub(super) fn ask_reboot(&mut self, setup: &Setup) -> bool {
        let body = remediation::body(self, false);
        let name = format!("by-hand-{}", self.reboot_uids);
        let made = Reboot {
            uid: 0,
            name,
            incident: None,
            owner: None,
            body,
            ready: (None, ""),
        };
        self.make(setup, made);
        true
    }
}
