use health_event::{BootId, NodeName};

use super::*;

fn core(spool: Spool) -> Core {
    let identity = Identity {
        node: NodeName::new("gpu-1").unwrap(),
        boot: BootId::new("b"),
        machine: "m".into(),
        process: "p".into(),
    };
    let stored = Stored {
        id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
        fresh: true,
        adopted: true,
        last_number: 0,
        pending: false,
        position: None,
        boots: Vec::new(),
        faults: Vec::new(),
        level: crate::spool::Level::default(),
        untold: Vec::new(),
    };
    Core::new(identity, spool, stored, Detectors::new(false))
}

async fn next(core: &Core) -> Option<(u64, HealthEvent)> {
    match core.next(1).await.unwrap() {
        Next::Batch(mut batch) => batch.pop(),
        Next::Empty => None,
    }
}

/// Its gap record would be lost with it.
#[tokio::test]
async fn a_refused_event_that_can_not_be_put_aside_stays_the_next_to_be_sent() {
    for full in [true, false] {
        let (spool, _queue) = Spool::hanging(full);
        let core = core(spool);
        let numbers = core.submit_foreign(vec![HealthEvent::default()]).unwrap();
        let (number, event) = next(&core).await.unwrap();
        assert_eq!(numbers, [number]);
        let refused = core.refused(number, event, "bad code".into());
        assert_eq!(refused.is_err(), full);
        assert_eq!(next(&core).await.is_some(), full);
        let refusals = core.snapshot().counters.refused;
        assert_eq!(refusals, u64::from(!full), "counted once it is done");
    }
}
