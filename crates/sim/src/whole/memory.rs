//! What is lost when the process ends.

use std::collections::BTreeMap;

use decide::drain::{Ask, Asked};
use decide::janitor::Answer;
use decide::quarantine::Request;
use health_event::incident::{Attempt, IncidentId};

use super::World;
use crate::world::Kept;

/// A call of the janitor that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Of which object.
    pub object: u8,
    /// What will be answered.
    pub answer: Answer,
}

/// An incident and its version, for which something was decided.
pub(super) type Decided = (IncidentId, u64);

/// What the controller has in memory alone.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct Memory {
    /// Whether the pods of the node were listed.
    pub pods_known: bool,
    /// Evictions that were decided, and for which version of which incident.
    pub evictions: Option<Kept<(Vec<Ask>, Decided)>>,
    /// What became of evictions, by the pod's UID.
    pub asked: Kept<BTreeMap<String, Asked>>,
    /// An order that was decided, and for which version of which incident.
    pub order: Option<Kept<(Attempt, Decided)>>,
    /// The object of this name was made, and the watch has not shown it.
    pub made: Option<String>,
    /// The API server refused the object of this name.
    pub order_refused: Option<String>,
    /// The object that has a place in its turn and no intent yet.
    pub reserved: Option<u8>,
    /// Objects whose intent this process stored, and that it has not called for.
    pub fresh: Vec<u8>,
    /// The call to the provider that is under way.
    pub call: Option<Kept<Call>>,
    /// The last answer for each object, and when the provider was last asked.
    pub answers: Kept<BTreeMap<u8, (Answer, Option<u16>)>>,
    /// A person's request.
    pub request: Option<Kept<Request>>,
}

impl World {
    /// The process ends, and another one begins.
    pub(super) fn crash(&mut self) {
        self.memory = Memory::default();
        // What there is was listed.
        self.watch();
    }
}

impl World {
    /// The watch shows what there is. Locks of objects that are gone go with them.
    pub(super) fn watch(&mut self) -> bool {
        self.memory.made = None;
        let gone = |uid: &mut u8| !self.reboots.iter().any(|reboot| reboot.uid == *uid);
        let freed = self.lock.take_if(gone).is_some();
        self.lag.take().is_some() || freed
    }

    /// Before the objects change at the API server: the watch lags one change behind.
    pub(super) fn falls_behind(&mut self, setup: &super::Setup) {
        if setup.lags {
            self.lag = Some(self.reboots.clone());
        }
    }
}

impl Memory {
    /// Nothing more is to be done with an object.
    pub(super) fn forget(&mut self, object: u8) {
        self.fresh.retain(|uid| *uid != object);
        self.reserved.take_if(|of| *of == object);
        self.answers.change(|answers| drop(answers.remove(&object)));
        self.call.take_if(|call| call.object == object);
    }
}
