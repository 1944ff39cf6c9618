use proptest::prelude::*;

use super::*;

fn event(number: u64) -> HealthEvent {
    let order = format!("boot/spool/{number}");
    HealthEvent {
        metadata: [(keys::ORDER.to_owned(), order)].into(),
        ..HealthEvent::default()
    }
}

fn numbers(next: &Next) -> Vec<u64> {
    match next {
        Next::Batch(batch) => batch.iter().map(|(number, _)| *number).collect(),
        Next::Empty => Vec::new(),
    }
}

/// What the disk does with what it is told, one step at a time.
#[derive(Debug, Clone)]
enum Step {
    /// An event comes in and its write is queued.
    Push,
    /// The next queued write is carried out, or fails.
    Commit(bool),
    /// What was carried out becomes known.
    Tell,
    /// Failed writes are queued again.
    Again,
    /// The sender asks; the writes queued so far are carried out before the answer.
    Send { limit: usize, delivered: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Push),
        3 => any::<bool>().prop_map(Step::Commit),
        3 => Just(Step::Tell),
        1 => Just(Step::Again),
        3 => (1_usize..6, any::<bool>()).prop_map(|(limit, delivered)| Step::Send { limit, delivered }),
    ]
}

/// The world around the queue: disk, controller, what is on its way.
#[derive(Default)]
struct World {
    next: u64,
    writes: Vec<u64>,
    told: Vec<u64>,
    disk: std::collections::BTreeSet<u64>,
    delivered: Vec<u64>,
}

impl World {
    fn commit(&mut self, ok: bool) {
        if self.writes.is_empty() {
            return;
        }
        let number = self.writes.remove(0);
        if ok {
            self.disk.insert(number);
            self.told.push(number);
        }
    }

    fn send(&mut self, queue: &mut Outgoing, limit: usize, delivered: bool) {
        let next = match queue.next(limit) {
            Ok(next) => next,
            Err(view) => {
                let read = self.disk.range(view.after + 1..).take(limit);
                let read = read.map(|n| event(*n)).collect();
                // Before the answer is looked at, more becomes known.
                while !self.writes.is_empty() {
                    self.commit(true);
                }
                for number in self.told.drain(..) {
                    queue.note_stored(number);
                }
                queue.merge(read, view, limit)
            }
        };
        if !delivered {
            return;
        }
        let sent = numbers(&next);
        let Some(last) = sent.last().copied() else {
            return;
        };
        self.delivered.extend(sent);
        queue.acknowledge(last);
        self.disk.retain(|number| *number > last);
        self.writes.retain(|number| *number > last);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_event_is_delivered_once_and_in_order(
        steps in proptest::collection::vec(step(), 0..120),
        pending in 0_u64..6,
    ) {
        let mut world = World { next: pending, ..World::default() };
        world.disk.extend(1..=pending);
        let mut queue = Outgoing::new(pending, pending > 0);
        for step in steps {
            match step {
                Step::Push => {
                    world.next += 1;
                    queue.push(world.next, event(world.next), 10);
                    world.writes.push(world.next);
                }
                Step::Commit(ok) => world.commit(ok),
                Step::Tell => for number in world.told.drain(..) {
                    queue.note_stored(number);
                },
                Step::Again => {
                    let unstored: Vec<u64> = queue.unstored().map(|(number, _)| number).collect();
                    for number in unstored {
                        if !world.writes.contains(&number) {
                            world.writes.push(number);
                        }
                    }
                }
                Step::Send { limit, delivered } => world.send(&mut queue, limit, delivered),
            }
        }
        for _ in 0..400 {
            world.send(&mut queue, 5, true);
        }
        prop_assert_eq!(world.delivered, (1..=world.next).collect::<Vec<_>>());
        prop_assert!(queue.is_delivered(world.next));
        prop_assert_eq!((queue.unsafe_events, queue.unsafe_bytes), (0, 0));
    }
}

#[test]
fn beyond_the_window_the_disk_remembers() {
    let mut queue = Outgoing::new(0, false);
    for number in 1..=1_000 {
        queue.push(number, event(number), 10);
        queue.note_stored(number);
    }
    assert!(queue.in_memory() <= WINDOW);
    assert!(queue.are_safe(&[1, 1_000]));
    assert!(
        queue.next(10).is_err(),
        "the disk is asked, so that order holds"
    );
}

#[test]
fn there_is_room_again_once_events_are_stored_or_acknowledged() {
    let mut queue = Outgoing::new(0, false);
    for number in 1..=MAX_UNSAFE_EVENTS as u64 {
        assert!(queue.has_room());
        queue.push(number, event(number), 10);
    }
    assert!(!queue.has_room());
    queue.acknowledge(1);
    assert!(queue.has_room());
    queue.push(5_000, event(5_000), MAX_UNSAFE_BYTES);
    assert!(!queue.has_room());
    queue.note_stored(5_000);
    assert!(queue.has_room());
}

#[test]
fn a_batch_is_bounded_in_bytes_but_never_empty() {
    let mut queue = Outgoing::new(0, false);
    for number in 1..=3 {
        let mut big = event(number);
        big.message = "m".repeat(BATCH_BYTES - 10_000);
        queue.push(number, big, 10);
    }
    let next = queue.next(10).unwrap();
    assert_eq!(numbers(&next), [1]);
}
