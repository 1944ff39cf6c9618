//! How many reboots run at a time, and who waits for that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::janitor::{self as decided, Beside, Place};
use health_event::NodeName;
use jiff::Timestamp;
use k8s_api::reboot_node::RebootNode;

use super::facts;
use super::intents::StoredIntent;
use super::work::Module;

/// What may be sent, by the object's UID.
type Intents = BTreeMap<String, StoredIntent>;
/// The node of each object that is about to be begun, by its UID.
type Reserved = BTreeMap<String, String>;

/// Objects that are woken beyond the free places.
const WOKEN_BEYOND: usize = 8;
/// Between looks whether places stay free while objects wait.
const PLACES_LOOK: Duration = Duration::from_secs(15);

impl Module {
    /// Whether a reboot of the object's node may be begun beside those that have a place.
    pub(super) fn place(&self, object: &RebootNode) -> Place {
        self.beside(object, &self.intents(), &self.reserved())
    }

    /// Keeps a place for the object until its turn ends, if there is one.
    pub(super) fn reserve(&self, object: &RebootNode) -> bool {
        let intents = self.intents();
        let mut reserved = self.reserved();
        let is_free = self.beside(object, &intents, &reserved) == Place::Free;
        if is_free {
            let of = object.metadata.uid.clone();
            reserved.insert(of, object.spec.node_name.clone());
        }
        is_free
    }

    /// Makes the object's place that of its intent, unless another took the last one meanwhile.
    pub(super) fn take_place(&self, object: &RebootNode, intent: &StoredIntent) -> bool {
        let mut intents = self.intents();
        let mut reserved = self.reserved();
        let is_free = self.beside(object, &intents, &reserved) == Place::Free;
        if is_free {
            reserved.remove(&intent.uid);
            intents.insert(intent.uid.clone(), intent.clone());
        }
        is_free
    }

    fn beside(&self, object: &RebootNode, intents: &Intents, reserved: &Reserved) -> Place {
        let config = &self.context.config;
        let own_node = config.kubernetes.node_name.as_ref();
        let own_node = own_node.map_or("", |node| node.as_str());
        let node = object.spec.node_name.as_str();
        let uid = object.metadata.uid.as_str();
        // Its own is there where its boot changed before the call, and it is stored anew.
        let intents = intents.values().filter(|i| i.uid != uid);
        let reserved = reserved.iter().filter(|(of, _)| *of != uid);
        let nodes = intents.map(|i| i.node.as_str());
        let under_way: Vec<&str> = nodes.chain(reserved.map(|(_, node)| &**node)).collect();
        let beside = Beside {
            own_node,
            under_way: &under_way,
            max_parallel: config.janitor.max_parallel,
        };
        decided::place(node, beside)
    }

    /// The object does not get its node's lock: its place is another's.
    pub(super) fn pass_on(&self, object: &RebootNode) {
        if self.reserved().remove(&object.metadata.uid).is_some() {
            self.wake_for_places();
        }
    }

    /// The turn of this node is over: places that came to no intent are free. What they wait for wakes
    /// them; who saw no place because of them is woken by the next that is free.
    pub(super) fn give_up_places(&self, key: &NodeName) {
        self.reserved().retain(|_, node| node != key.as_str());
    }

    /// A place is free: those that wait longest, a few more than there are places. Where none of these
    /// can begin, the next look at free places wakes the others.
    pub(super) fn wake_for_places(&self) {
        let taken = self.intents().len() + self.reserved().len();
        let free = self
            .context
            .config
            .janitor
            .max_parallel
            .saturating_sub(taken);
        let waiting = self.waiting().into_iter().filter(|object| {
            // Whoever names no node is ended without a place.
            let node = NodeName::new(&object.spec.node_name);
            node.is_ok_and(|node| !self.memory.of(&node, &object.metadata.uid).kept)
        });
        for object in waiting.take(free + WOKEN_BEYOND) {
            self.wake(&object.spec.node_name);
        }
    }

    /// Wakes all that wait again and again, while places are free.
    pub(super) async fn watch_places(&self) {
        loop {
            tokio::time::sleep(PLACES_LOOK).await;
            if self.intents().len() < self.context.config.janitor.max_parallel {
                for object in self.waiting() {
                    self.wake(&object.spec.node_name);
                }
            }
        }
    }

    /// What is not begun, oldest first.
    fn waiting(&self) -> Vec<Arc<RebootNode>> {
        let now = Timestamp::now();
        let mut waiting: Vec<Arc<RebootNode>> = self.context.reboots.all();
        let intents = self.intents();
        waiting.retain(|o| !o.is_over() && !intents.contains_key(&o.metadata.uid));
        waiting.sort_by_key(|object| facts::created_at(object, now));
        waiting
    }
}
