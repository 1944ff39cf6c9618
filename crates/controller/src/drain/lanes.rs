//! The order of calls: each node has a lane of its own, and the lanes take turns.
//!
//! # Guarantees
//! - Calls of a lane begin in the order that they came in, at most [`OF_NODE`] at a time: a node whose calls
//!   hang does not keep those of another.
//! - At most [`AT_ONCE`] calls count at a time. One that takes longer than [`SLOW`] waits for an answer that
//!   may not come, costs the API server next to nothing, and counts no more; with those at most [`MOST`] are
//!   under way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use health_event::NodeName;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::apply::Order;

/// Calls at a time over all nodes: enough for the 250 evictions a second that an API server does.
const AT_ONCE: usize = 16;
/// Calls of one node at a time.
const OF_NODE: usize = 4;
/// A call that takes longer waits for something else than the API server's own work, which takes it some
/// milliseconds.
const SLOW: Duration = Duration::from_secs(1);
/// Calls under way, with those that are slow.
const MOST: usize = 256;

/// Makes the calls as they come in; ends once no more can come, and all were made.
pub(super) async fn run<F: Future<Output = ()>>(
    mut orders: UnboundedReceiver<Order>,
    call: impl Fn(Order) -> F,
) {
    let mut lanes = Lanes::default();
    let mut calls = FuturesUnordered::new();
    let mut is_open = true;
    while is_open || !calls.is_empty() {
        let now = Instant::now();
        while let Some(order) = lanes.begin(now) {
            let (node, call) = (order.node.clone(), call(order));
            calls.push(async move {
                call.await;
                (node, now)
            });
        }
        let slow_at = lanes.slow_at();
        let sleep = tokio::time::sleep_until(slow_at.unwrap_or(now));
        tokio::select! {
            order = orders.recv(), if is_open => match order {
                Some(order) => lanes.push(order),
                None => is_open = false,
            },
            Some((node, began)) = calls.next() => lanes.end(&node, began),
            () = sleep, if slow_at.is_some() => lanes.pass_slow(Instant::now()),
        }
    }
}

#[derive(Debug, Default)]
struct Lanes {
    waiting: HashMap<NodeName, VecDeque<Order>>,
    /// Nodes that wait for their turn, each once; those with as many calls as they may have are not among them.
    turns: VecDeque<NodeName>,
    in_turns: HashSet<NodeName>,
    under_way: HashMap<NodeName, usize>,
    all: usize,
    /// When the calls that count began, oldest first.
    counted: VecDeque<Instant>,
}

impl Lanes {
    fn push(&mut self, order: Order) {
        let node = order.node.clone();
        self.waiting
            .entry(node.clone())
            .or_default()
            .push_back(order);
        self.line_up(node);
    }

    fn line_up(&mut self, node: NodeName) {
        let busy = self.under_way.get(&node).copied().unwrap_or_default();
        let waits = self.waiting.contains_key(&node);
        if waits && busy < OF_NODE && self.in_turns.insert(node.clone()) {
            self.turns.push_back(node);
        }
    }

    /// The next call, if one may begin now.
    fn begin(&mut self, now: Instant) -> Option<Order> {
        if self.counted.len() >= AT_ONCE || self.all >= MOST {
            return None;
        }
        let node = self.turns.pop_front()?;
        self.in_turns.remove(&node);
        let waiting = self.waiting.get_mut(&node)?;
        let order = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&node);
        }
        *self.under_way.entry(node.clone()).or_default() += 1;
        self.all += 1;
        self.counted.push_back(now);
        self.line_up(node);
        order
    }

    /// A call that began then has ended.
    fn end(&mut self, node: &NodeName, began: Instant) {
        self.all -= 1;
        if let Some(at) = self.counted.iter().position(|at| *at == began) {
            self.counted.remove(at);
        }
        if let Some(busy) = self.under_way.get_mut(node) {
            *busy -= 1;
            if *busy == 0 {
                self.under_way.remove(node);
            }
        }
        self.line_up(node.clone());
    }

    /// When the next call is slow.
    fn slow_at(&self) -> Option<Instant> {
        self.counted.front().map(|began| *began + SLOW)
    }

    fn pass_slow(&mut self, now: Instant) {
        while self
            .counted
            .pop_front_if(|began| *began + SLOW <= now)
            .is_some()
        {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use decide::drain::{Ask, How, PodRef};
    use health_event::incident::IncidentId;
    use tokio::sync::mpsc;

    use super::*;

    fn order(node: &str, pod: usize) -> Order {
        Order {
            node: NodeName::new(node).unwrap(),
            incident: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
            version: 1,
            ask: Ask {
                pod: PodRef {
                    namespace: "d".to_owned(),
                    name: pod.to_string(),
                    uid: pod.to_string(),
                },
                how: How::Evict(None),
            },
        }
    }

    /// When each call began and ended, in milliseconds, in the order of their beginnings; calls on nodes that
    /// hang take 10 s, the others 5 ms.
    async fn made(orders: Vec<Order>) -> Vec<(String, u128, u128)> {
        let (sender, queue) = mpsc::unbounded_channel();
        for order in orders {
            sender.send(order).unwrap();
        }
        drop(sender);
        let (start, made) = (Instant::now(), RefCell::new(Vec::new()));
        let since = || start.elapsed().as_millis();
        let call = |order: Order| {
            let (made, since, node) = (&made, &since, order.node.to_string());
            async move {
                let index = made.borrow().len();
                made.borrow_mut().push((node.clone(), since(), 0));
                let hangs = node.starts_with("hangs");
                tokio::time::sleep(Duration::from_millis(if hangs { 10_000 } else { 5 })).await;
                made.borrow_mut()[index].2 = since();
            }
        };
        run(queue, call).await;
        made.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_calls_hang_keeps_no_call_of_another() {
        let mut orders: Vec<Order> = (0..100).map(|pod| order("hangs", pod)).collect();
        orders.extend((0..20).map(|pod| order("a", pod)));
        let made = made(orders).await;
        let last = made
            .iter()
            .filter(|(node, ..)| node == "a")
            .map(|(.., end)| end)
            .max();
        assert!(*last.unwrap() <= 50, "{last:?}");
        assert_eq!(made.len(), 120);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_everywhere_keep_the_others_for_a_second_at_most() {
        let nodes: Vec<String> = (0..32).map(|node| format!("hangs-{node}")).collect();
        let mut orders: Vec<Order> = nodes.iter().map(|node| order(node, 0)).collect();
        orders.push(order("a", 0));
        let made = made(orders).await;
        let (_, began, _) = made.iter().find(|(node, ..)| node == "a").unwrap();
        assert!(*began <= 2_100, "{began}");
    }

    #[tokio::test(start_paused = true)]
    async fn sixteen_calls_are_under_way_and_nodes_take_turns() {
        let nodes: Vec<String> = (0..40).map(|node| format!("n{node}")).collect();
        let orders = (0..40).flat_map(|pod| nodes.iter().map(move |node| order(node, pod)));
        let made = made(orders.take(1_600).collect()).await;
        let end = made.iter().map(|(.., end)| *end).max().unwrap();
        assert!(
            (500..=550).contains(&end),
            "1,600 calls of 5 ms, 16 at a time: {end} ms"
        );
        let first: HashSet<&str> = made[..40].iter().map(|(node, ..)| node.as_str()).collect();
        assert_eq!(first.len(), 40, "each node has its turn before one has two");
        for (_, began, _) in &made {
            let now = made
                .iter()
                .filter(|(_, from, to)| from <= began && began < to);
            assert!(now.count() <= AT_ONCE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_node_run_beside_each_other() {
        let made = made((0..8).map(|pod| order("a", pod)).collect()).await;
        assert_eq!(
            made.iter().map(|(.., end)| *end).max(),
            Some(10),
            "four at a time"
        );
    }
}
