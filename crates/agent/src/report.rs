//! The report: what is open and how the agent is, as a level.

use std::collections::VecDeque;
use std::time::Duration;

use health_event::HealthEvent;
use jiff::Timestamp;
use tonic::Code;
use tonic::transport::Channel;
use wire::validate::{MAX_BATCH_BYTES, MAX_EVENTS};
use wire::warden::v1::agent_client::AgentClient;
use wire::warden::v1::{Asserted, Detector, DetectorState, ReportReply, ReportRequest, Spool};

use crate::backoff::{Backoff, random};
use crate::core::{Core, Snapshot};
use crate::crash;
use crate::delivery::{authorised, is_transport};
use crate::detectors::Health;
use crate::ids::Identity;
use crate::link::{Link, said};
use crate::status::Status as AgentStatus;

/// Heartbeat until the controller says otherwise.
const INTERVAL: Duration = Duration::from_mins(1);
/// Bounds of what the controller may say.
const SHORTEST: u32 = 1;
const LONGEST: u32 = 3_600;
/// Bytes of events in one report at most: what a batch may have, less room for the rest of it.
const LIST_BYTES: usize = MAX_BATCH_BYTES - 256 * 1024;
/// What an event takes beside its own bytes: key and length.
const PER_EVENT: usize = 8;

/// Reports until the connection is of no use. Answers why.
pub async fn run(core: &Core, link: &Link, channel: Channel, status: &AgentStatus) -> String {
    let mut client = AgentClient::new(channel);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut list = List::default();
    loop {
        let part = list.next();
        let request = message(core.identity(), core.snapshot(), part);
        let answer = match authorised(link, request) {
            Ok(request) => {
                crash::point("report.send.before");
                let answer = client.report(request).await;
                crash::point("report.send.after");
                answer
            }
            Err(error) => Err(error),
        };
        let wait = match answer {
            Ok(reply) => {
                backoff.reset();
                status.reported();
                let reply = reply.into_inner();
                take_over(core, &reply);
                if list.told(reply.want_list, || core.asserted()) {
                    continue;
                }
                interval(reply.next_interval_seconds)
            }
            Err(error) => {
                status.refused(&error);
                if is_transport(&error) {
                    return said(&error);
                }
                if error.code() != Code::Unavailable {
                    tracing::warn!(code = ?error.code(), why = said(&error), "report not taken");
                }
                backoff.wait()
            }
        };
        // A change is told at once; a timer that ran out tells the same again.
        let _ = tokio::time::timeout(wait, core.report.notified()).await;
    }
}

/// The next heartbeat: the controller's interval ± 20 %.
fn interval(seconds: u32) -> Duration {
    let base = match seconds {
        0 => INTERVAL,
        seconds => Duration::from_secs(seconds.clamp(SHORTEST, LONGEST).into()),
    };
    base.mul_f64(0.8 + 0.4 * random())
}

fn take_over(core: &Core, reply: &ReportReply) {
    if !core.snapshot().adopting {
        return;
    }
    let events: Vec<HealthEvent> = reply
        .adopt
        .iter()
        .filter_map(|event| HealthEvent::try_from(event.clone()).ok())
        .filter(|event| event.node_name == core.identity().node.as_str())
        .collect();
    core.adopt(&events);
}

/// The list of asserted faults on its way to a controller that asked for it.
#[derive(Debug, Default)]
struct List {
    /// What is not told yet, in parts that are within the bounds of a batch.
    parts: VecDeque<Vec<HealthEvent>>,
    /// There is more than one part.
    many: bool,
    /// It was told just now, so that the next answer's wish is the old one.
    told: bool,
}

/// One part of it.
struct Part<'a> {
    events: &'a [HealthEvent],
    /// It is not the whole list: what is not in it is not denied.
    partial: bool,
}

impl List {
    /// What the next report carries.
    fn next(&self) -> Option<Part<'_>> {
        let partial = self.many;
        self.parts.front().map(|events| Part { events, partial })
    }

    /// The controller took the report. Answers whether the next one follows at once.
    fn told(&mut self, wanted: bool, asserted: impl FnOnce() -> Vec<HealthEvent>) -> bool {
        if self.parts.pop_front().is_some() {
            if self.parts.is_empty() {
                self.told = self.many;
                // After several parts it has to be said that the detectors see.
                return std::mem::take(&mut self.many);
            }
            return true;
        }
        // One list per mismatch: the controller does not ask again for the same one.
        if !wanted || std::mem::take(&mut self.told) {
            return false;
        }
        self.parts = parts(asserted());
        self.many = self.parts.len() > 1;
        if self.many {
            let events: usize = self.parts.iter().map(Vec::len).sum();
            tracing::warn!(
                events,
                parts = self.parts.len(),
                "the list of asserted faults is too long for one report: it is told in parts, \
                 and none of them denies what is not in it"
            );
        }
        true
    }
}

/// The list in parts, at least one: each within the bounds of a batch, with room for the rest of
/// the report.
fn parts(list: Vec<HealthEvent>) -> VecDeque<Vec<HealthEvent>> {
    let (mut parts, mut bytes) = (VecDeque::from([Vec::new()]), 0);
    for event in list {
        let size = wire::encode_body(&event).len() + PER_EVENT;
        let full = |part: &Vec<HealthEvent>| {
            part.len() >= MAX_EVENTS || (bytes + size > LIST_BYTES && !part.is_empty())
        };
        if parts.back().is_some_and(full) {
            parts.push_back(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.back_mut() {
            part.push(event);
        }
    }
    parts
}

fn message(identity: &Identity, now: Snapshot, part: Option<Part<'_>>) -> ReportRequest {
    let mut detectors = now.detectors;
    if part.as_ref().is_some_and(|part| part.partial) {
        for (_, health) in &mut detectors {
            *health = Health::Blind("its faults do not fit into one report".into());
        }
    }
    ReportRequest {
        node_name: identity.node.as_str().to_owned(),
        boot_id: identity.boot.as_str().to_owned(),
        machine_id: identity.machine.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        spool_id: now.spool_id,
        process_id: identity.process.clone(),
        detectors: detectors.into_iter().map(detector).collect(),
        spool: Some(Spool {
            oldest: now
                .level
                .oldest
                .and_then(|second| Timestamp::from_second(second).ok())
                .map(wire::timestamp_to_wire),
            bytes: now.level.bytes,
            dropped: now.level.dropped,
        }),
        last_number: now.last_number,
        asserted: Some(Asserted {
            hash_version: health_event::SentIdentity::VERSION,
            count: now.count,
            hash: now.hash.to_vec(),
        }),
        has_list: part.is_some(),
        asserted_events: part
            .map(|part| part.events.iter().cloned().map(Into::into).collect())
            .unwrap_or_default(),
        started_from_nothing: now.adopting,
    }
}

fn detector((name, health): (&'static str, Health)) -> Detector {
    let (state, why) = match health {
        Health::Starting => (DetectorState::DetectorStarting, String::new()),
        Health::Settled => (DetectorState::DetectorSettled, String::new()),
        Health::Blind(why) => (DetectorState::DetectorBlind, why),
        Health::Off(why) => (DetectorState::DetectorOff, why),
    };
    Detector {
        name: name.to_owned(),
        state: state.into(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(bytes: usize) -> HealthEvent {
        HealthEvent {
            message: "m".repeat(bytes),
            ..HealthEvent::default()
        }
    }

    #[test]
    fn a_long_list_is_told_in_parts_within_the_bounds_of_a_batch() {
        // (events, bytes of each, parts)
        let table = [
            (0, 0, 1),
            (1_000, 100, 1),
            (1_001, 100, 2),
            (1_000, 16_000, 5),
            (4_096, 100, 5),
        ];
        for (count, bytes, want) in table {
            let parts = parts(vec![event(bytes); count]);
            assert_eq!(parts.len(), want, "{count} of {bytes}");
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), count);
            for events in parts {
                let events = events.into_iter().map(Into::into).collect();
                let batch = wire::datamodels::HealthEvents { version: 1, events };
                assert!(prost::Message::encoded_len(&batch) <= MAX_BATCH_BYTES);
                assert!(batch.events.len() <= MAX_EVENTS);
            }
        }
    }

    #[test]
    fn every_part_is_told_and_then_that_the_detectors_see() {
        let mut list = List::default();
        assert!(!list.told(false, || panic!("not wanted")));
        assert!(list.told(true, || vec![event(1); 2_500]));
        for left in [2, 1, 0] {
            let part = list.next().unwrap();
            assert!(part.partial);
            assert_eq!(part.events.len(), if left == 0 { 500 } else { 1_000 });
            assert!(list.told(true, || panic!("asked already")));
        }
        assert!(list.next().is_none(), "a report without a list");
        assert!(!list.told(true, || panic!("told already")));
        assert!(list.told(true, || vec![event(1)]), "wanted anew");
        assert!(!list.next().unwrap().partial);
        assert!(!list.told(true, || panic!("told already")));
    }

    #[test]
    fn the_interval_is_the_controllers_within_a_fifth_and_bounded() {
        for (said, base) in [(0, 60), (60, 60), (300, 300), (u32::MAX, 3_600)] {
            let wait = interval(said).as_secs_f64();
            let base = f64::from(base);
            assert!((0.8 * base..=1.2 * base).contains(&wait), "{said}: {wait}");
        }
    }
}
