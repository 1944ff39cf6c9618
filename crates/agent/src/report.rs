//! The report: what is open and how the agent is, as a level.

use std::time::Duration;

use health_event::HealthEvent;
use jiff::Timestamp;
use tonic::Code;
use tonic::transport::Channel;
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

/// Reports until the connection is of no use. Answers why.
pub async fn run(core: &Core, link: &Link, channel: Channel, status: &AgentStatus) -> String {
    let mut client = AgentClient::new(channel);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut with_list = false;
    loop {
        let request = message(core.identity(), core.snapshot(with_list));
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
                // One list per mismatch: the controller does not ask again for the same one.
                with_list = reply.want_list && !with_list;
                if with_list {
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
    if !core.snapshot(false).adopting {
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

fn message(identity: &Identity, now: Snapshot) -> ReportRequest {
    ReportRequest {
        node_name: identity.node.as_str().to_owned(),
        boot_id: identity.boot.as_str().to_owned(),
        machine_id: identity.machine.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        spool_id: now.spool_id,
        process_id: identity.process.clone(),
        detectors: now.detectors.into_iter().map(detector).collect(),
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
        has_list: now.list.is_some(),
        asserted_events: now
            .list
            .unwrap_or_default()
            .into_iter()
            .map(Into::into)
            .collect(),
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

    #[test]
    fn the_interval_is_the_controllers_within_a_fifth_and_bounded() {
        for (said, base) in [(0, 60), (60, 60), (300, 300), (u32::MAX, 3_600)] {
            let wait = interval(said).as_secs_f64();
            let base = f64::from(base);
            assert!((0.8 * base..=1.2 * base).contains(&wait), "{said}: {wait}");
        }
    }
}
