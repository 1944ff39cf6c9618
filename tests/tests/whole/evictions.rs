//! Evictions of several nodes at a time.

use std::time::Duration;

use e2e::proxy::{Held, Place};
use e2e::{KernelLog, Machine};
use http::Method;
use tokio::task::JoinSet;

use super::kit::Loop;
use super::settings::Settings;

/// Evictions at a time over all nodes (`drain`).
const AT_ONCE: usize = 16;
/// Evictions of one node at a time (`drain`).
const OF_NODE: usize = 4;
/// Pods on each of the two nodes: more than may be evicted at a time.
const PODS: usize = 20;
/// A call that gets no answer is made anew after some seconds: none is held for as long, however few came.
const HELD: Duration = Duration::from_secs(1);
/// One more than may be under way would be here within milliseconds.
const ONE_MORE: Duration = Duration::from_millis(300);

/// Evictions on their way to the API server.
struct Evictions {
    coming: JoinSet<Held>,
    /// Arrived, and held.
    held: Vec<Held>,
}

impl Evictions {
    async fn next(&mut self) -> bool {
        let Some(held) = self.coming.join_next().await else {
            return false;
        };
        self.held.push(held.unwrap());
        true
    }

    /// Waits until as many are held as may be, or no more come.
    async fn fill(&mut self) {
        let all = async { while self.held.len() < AT_ONCE && self.next().await {} };
        // Fewer than all are under way where the second node is emptied a little later than the first.
        tokio::time::timeout(HELD, all).await.ok();
        tokio::time::timeout(ONE_MORE, self.next()).await.ok();
    }

    /// How many are under way. What the controller has given up, it may have replaced.
    async fn under_way(&self) -> usize {
        let count = || self.held.iter().filter(|held| held.is_waited_for()).count();
        if count() > AT_ONCE {
            // That a caller has gone away shows a moment later.
            tokio::time::sleep(ONE_MORE).await;
        }
        count()
    }
}

/// A loop before whose API server stands a proxy, and a second machine.
async fn two_machines(name: &str) -> (Loop, Machine) {
    let settings = Settings {
        proxied: true,
        ..Settings::default()
    };
    let at = Loop::start_with(name, settings).await;
    let (other, log) = (format!("{name}-too"), KernelLog::Pipe);
    let other = Machine::join(at.turn.testbed, &at.controller, &other, log);
    let other = other.await.unwrap();
    (at, other)
}

impl Evictions {
    /// Holds those of these pods.
    fn of(at: &Loop, pods: Vec<String>) -> Self {
        let proxy = at.proxy.as_ref().unwrap();
        let mut coming = JoinSet::new();
        for pod in pods {
            let path = format!("/api/v1/namespaces/at-once/pods/{pod}/eviction");
            let mut held = proxy.hold(Method::POST, &path, Place::Request);
            coming.spawn(async move {
                held.arrived().await.unwrap();
                held
            });
        }
        let held = Vec::new();
        Self { coming, held }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_waits_for_its_turn_is_not_sent_once_its_incident_is_over() {
    let (mut at, mut other) = two_machines("w-stale").await;
    let testbed = at.turn.testbed;
    let pods = testbed.create_pods_on(at.name(), "at-once", PODS);
    let mut evictions = Evictions::of(&at, pods.await.unwrap());
    let one = testbed.create_pods_on(&other.name, "at-once", 1);
    one.await.unwrap();
    at.falls_ill();
    for _ in 0..OF_NODE {
        assert!(evictions.next().await);
    }
    at.cordon(false).await;
    at.closed_by_hand().await;
    evictions.held.drain(..).for_each(Held::go);
    // Those of another node come behind them, and are made.
    std::mem::swap(&mut at.machine, &mut other);
    at.falls_ill();
    at.drain("Drained").await;
    std::mem::swap(&mut at.machine, &mut other);
    assert!(evictions.coming.try_join_next().is_none(), "one was sent");
    assert_eq!(at.pods("at-once").await.len(), PODS - OF_NODE);
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_of_two_nodes_are_under_way_sixteen_at_a_time_and_never_more() {
    let (mut at, mut other) = two_machines("w-evicts").await;
    let mut pods = Vec::new();
    for node in [at.name(), &other.name] {
        let made = at.turn.testbed.create_pods_on(node, "at-once", PODS);
        pods.extend(made.await.unwrap());
    }
    let mut evictions = Evictions::of(&at, pods);
    at.falls_ill();
    std::mem::swap(&mut at.machine, &mut other);
    at.falls_ill();
    let mut rounds = Vec::new();
    let mut came = 0;
    while evictions.next().await {
        evictions.fill().await;
        rounds.push(evictions.under_way().await);
        came += evictions.held.len();
        evictions.held.drain(..).for_each(Held::go);
    }
    println!("evictions under way in each round: {rounds:?}");
    assert_eq!(came, 2 * PODS, "{rounds:?}");
    let most = rounds.iter().max().copied();
    assert!(
        most.is_some_and(|most| (2..=AT_ONCE).contains(&most)),
        "{rounds:?}"
    );
    for _ in 0..2 {
        at.drain("Drained").await;
        assert!(at.pods("at-once").await.is_empty());
        std::mem::swap(&mut at.machine, &mut other);
    }
    at.controller.stop().unwrap();
}
