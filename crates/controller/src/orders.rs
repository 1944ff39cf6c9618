//! Repairs whose order is on its way to the API server: writes that only tell of them stand back meanwhile.
//!
//! Where many nodes are to be repaired at once, as many labels written beside the orders take the larger
//! share of the API server; a node waits for its order, and people see the label in its time.
//!
//! # Guarantees
//! - A write stands back while an order is on its way, and never longer than a bound.
//! - Whoever stood back is woken once no order is on its way, and by its own timer before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use health_event::NodeName;
use jiff::{SignedDuration, Timestamp};

use crate::workers::Workers;

/// Longest time that a write stands back by default: a few thousand orders, and too short for a person to miss it.
const LONGEST: SignedDuration = SignedDuration::from_secs(5);

/// Orders on their way. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Orders {
    longest: SignedDuration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    on_their_way: usize,
    /// At most one a node: it goes with its write, or when orders came to an end twice without it.
    behind: HashMap<NodeName, Behind>,
}

/// A write that stands back.
#[derive(Debug)]
struct Behind {
    since: Timestamp,
    workers: Workers,
    /// Whether it was woken since it last stood back.
    woken: bool,
}

/// An order that is on its way for as long as this lives.
#[derive(Debug)]
pub struct OnItsWay(Orders);

impl Default for Orders {
    fn default() -> Self {
        Self::new(LONGEST)
    }
}

impl Orders {
    /// None on its way; a write stands back for no longer than this.
    pub fn new(longest: SignedDuration) -> Self {
        Self {
            longest,
            state: Arc::default(),
        }
    }

    /// How many are on their way.
    pub fn on_their_way(&self) -> usize {
        self.lock().on_their_way
    }

    /// An order is about to be stored and sent.
    pub fn begin(&self) -> OnItsWay {
        self.lock().on_their_way += 1;
        OnItsWay(self.clone())
    }

    /// Whether a write to the node that only tells stands back, and until when at the longest: `workers` are
    /// woken for the node earlier where it may go.
    pub fn stand_back(
        &self,
        node: &NodeName,
        workers: &Workers,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut state = self.lock();
        let since = state.behind.get(node).map_or(now, |behind| behind.since);
        let until = since.checked_add(self.longest).unwrap_or(Timestamp::MAX);
        if state.on_their_way == 0 || until <= now {
            state.behind.remove(node);
            return None;
        }
        let behind = Behind {
            since,
            workers: workers.clone(),
            woken: false,
        };
        state.behind.insert(node.clone(), behind);
        Some(until)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.on_their_way -= 1;
        if state.on_their_way > 0 {
            return;
        }
        // What was woken before and did not come has nothing to write any more.
        state.behind.retain(|_, behind| !behind.woken);
        for (node, behind) in &mut state.behind {
            behind.woken = true;
            behind.workers.wake(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn a_write_stands_back_until_the_last_order_is_there_and_is_woken_then() {
        let (orders, workers, node) = (Orders::default(), Workers::new(), name("a"));
        assert_eq!(orders.stand_back(&node, &workers, at(0)), None);
        let (first, second) = (orders.begin(), orders.begin());
        assert_eq!(orders.stand_back(&node, &workers, at(0)), Some(at(5)));
        drop(first);
        assert_eq!(workers.backlog(), 0, "one is still on its way");
        drop(second);
        assert_eq!(workers.backlog(), 1);
        assert_eq!(orders.stand_back(&node, &workers, at(1)), None);
        drop(orders.begin());
        assert_eq!(orders.lock().behind.len(), 0);
    }

    #[test]
    fn a_stream_of_orders_keeps_no_write_for_longer_than_the_longest_time() {
        let (orders, workers, node) = (Orders::default(), Workers::new(), name("a"));
        for second in 0..5 {
            let _order = orders.begin();
            assert_eq!(orders.stand_back(&node, &workers, at(second)), Some(at(5)));
        }
        let _order = orders.begin();
        assert_eq!(orders.stand_back(&node, &workers, at(5)), None);
        assert_eq!(orders.stand_back(&node, &workers, at(5)), Some(at(10)));
    }

    #[test]
    fn what_has_nothing_to_write_any_more_is_forgotten() {
        let (orders, workers) = (Orders::default(), Workers::new());
        let order = orders.begin();
        orders.stand_back(&name("a"), &workers, at(0));
        drop(order);
        assert_eq!(orders.lock().behind.len(), 1, "it is woken once");
        drop(orders.begin());
        assert_eq!(orders.lock().behind.len(), 0);
        assert_eq!(workers.backlog(), 1);
    }
}
