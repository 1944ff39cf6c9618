//! `warden.v1.Agent/Report`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use decide::gone::is_of_another;
use event_store::{Fingerprint, NewEvent};
use health_event::{BootId, CloseCause, HealthEvent, NodeName, SentIdentity};
use jiff::Timestamp;
use prost::Message as _;
use telemetry::ControllerMetrics;
use telemetry::metrics::{OutcomeLabel, RefusalLabel};
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use tracing::warn;
use wire::datamodels as pb;
use wire::warden::v1::agent_server::Agent;
use wire::warden::v1::{ReportReply, ReportRequest};

use super::asked::Pair;
use super::compare::{self, Closable, DetectorStates, missing_there};
use super::contest::heard;
use super::ended::{self, EndError, Settled};
use super::state::{AgentState, Reports};
use crate::config::CheckRef;
use crate::crash;
use crate::ingest::{Transformers, new_event, status_of};
use crate::nodes::NodeCache;
use crate::trust::{Caller, Gate};

/// Detectors of a report at most.
const MOST_DETECTORS: usize = 64;
/// Longest short text (names, versions, ids).
const LONGEST_TEXT: usize = 256;
/// Events handed to an agent that began from nothing, at most: what fits into its 4 MiB.
const MOST_ADOPTED: usize = 1_000;
/// Bytes of them at most.
const MOST_ADOPTED_BYTES: usize = 3 * 1024 * 1024;

/// Takes reports in.
#[derive(Debug, Clone)]
pub struct ReportService {
    gate: Arc<Gate>,
    reports: Reports,
    nodes: NodeCache,
    reboot_clears: Arc<BTreeSet<CheckRef>>,
    transformers: Transformers,
    metrics: Arc<ControllerMetrics>,
}

impl ReportService {
    /// Over its parts; `reboot_clears` are the checks of socket senders whose faults a reboot
    /// closes.
    pub fn new(
        gate: Arc<Gate>,
        reports: Reports,
        nodes: NodeCache,
        reboot_clears: &[CheckRef],
        transformers: Transformers,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        Self {
            gate,
            reports,
            nodes,
            reboot_clears: Arc::new(reboot_clears.iter().cloned().collect()),
            transformers,
            metrics,
        }
    }

    async fn take_in(&self, request: Request<ReportRequest>) -> Result<ReportReply, Status> {
        let (headers, _, report) = request.into_parts();
        let caller = self
            .gate
            .identify(&headers)
            .await
            .map_err(|denied| denied.status())?;
        let node = check(&report).map_err(|why| {
            self.count_refusal("bad_report");
            Status::invalid_argument(why)
        })?;
        self.gate
            .may_speak_for(&caller, node.as_str())
            .map_err(|denied| denied.status())?;
        let now = Timestamp::now();
        let detectors = DetectorStates::new(&report.detectors);
        let boot = BootId::new(&report.boot_id);
        if !report.machine_id.is_empty() && !boot.is_unknown() {
            let store = self.reports.store();
            let observed = store.observe_boot(&report.machine_id, &boot, &report.spool_id, now);
            observed.await.map_err(|error| status_of(&error))?;
        }
        let size = self.nodes.len();
        let patience = self.reports.patience(size);
        let foreign = self.is_of_another_machine(&node, &report);
        // The events of a list come before the state that says "settled": whoever is woken by the
        // latter must find the former.
        let compared = if foreign {
            Compared::with_nobody()
        } else {
            let known = self.known(&node)?;
            let (_, contested_at) = heard(&known, &report.process_id, patience, now);
            let word = Word {
                node: &node,
                report: &report,
                detectors: &detectors,
                contested: contested_at.is_some(),
            };
            self.reconcile(&caller, &word, now).await?
        };
        let before = self.known(&node)?;
        let mut state = state_after(&before, &report, &detectors, boot, now);
        (state.others, state.contested_at) = heard(&before, &report.process_id, patience, now);
        // "Settled" is about the faults that the agent asserts: without their list it is not its
        // word yet, as to a store that was lost.
        let unheard = compared.differs || (!compared.caught_up && !before.expected);
        let said_before = before.process_id == state.process_id
            && before.settled_boot.is_some()
            && before.settled_boot == state.settled_boot;
        if unheard && !said_before {
            state.settled_boot = None;
        }
        self.end_rebooted(&node, &report, &state, now).await?;
        self.reports
            .put(&node, state)
            .await
            .map_err(|error| status_of(&error))?;
        self.metrics.reports.inc();
        if foreign && report.started_from_nothing {
            return Err(Status::unavailable(
                "this agent's machine is not the one that the node object names: what is open for the \
                 node is not its own to take over [other_machine]",
            ));
        }
        let interval = self.reports.next_interval(size).as_secs();
        Ok(ReportReply {
            next_interval_seconds: u32::try_from(interval).unwrap_or(u32::MAX).max(1),
            want_list: compared.want_list,
            adopt: compared.adopt,
        })
    }

    fn known(&self, node: &NodeName) -> Result<AgentState, Status> {
        self.reports.agent(node).map_err(|error| internal(&error))
    }

    /// Whether the agent runs on another machine than the node object names, as far as both are
    /// known.
    fn is_of_another_machine(&self, node: &NodeName, report: &ReportRequest) -> bool {
        let object = self.nodes.get(node);
        object.is_some_and(|object| is_of_another(&report.machine_id, &object.system_uuid))
    }

    /// Closes what the reboot ended, before the state that says "settled" wakes anybody.
    async fn end_rebooted(
        &self,
        node: &NodeName,
        report: &ReportRequest,
        state: &AgentState,
        now: Timestamp,
    ) -> Result<(), Status> {
        let Some(boot) = &state.settled_boot else {
            return Ok(());
        };
        if report.machine_id.is_empty() || !self.is_caught_up(node, report)? {
            return Ok(());
        }
        let settled = Settled {
            node,
            machine: &report.machine_id,
            boot,
            spool: &report.spool_id,
            last_number: report.last_number,
        };
        let closed =
            ended::close_rebooted(self.reports.store(), &settled, &self.reboot_clears, now).await;
        closed.map_err(|error| match error {
            EndError::Read(error) => internal(&error),
            EndError::Write(error) => status_of(&error),
        })
    }

    /// Compares what the agent asserts with what is open here.
    async fn reconcile(
        &self,
        caller: &Caller,
        word: &Word<'_>,
        now: Timestamp,
    ) -> Result<Compared, Status> {
        let Word { node, report, .. } = *word;
        let mut compared = Compared {
            caught_up: true,
            ..Compared::default()
        };
        if report.started_from_nothing {
            compared.adopt = self.adoptable(node)?;
            return Ok(compared);
        }
        let Some(asserted) = &report.asserted else {
            return Ok(compared);
        };
        compared.caught_up = self.is_caught_up(node, report)?;
        if asserted.hash_version != SentIdentity::VERSION || !compared.caught_up {
            return Ok(compared);
        }
        crash::point("report.before-compare");
        let ours = self.asserted_here(node)?;
        let our_hash = SentIdentity::hash_of_set(ours.iter().map(|c| c.fault.sent));
        if our_hash[..] == asserted.hash[..] {
            self.forget(node);
            return Ok(compared);
        }
        if self.reports.asked().agrees(node, &our_hash, &asserted.hash) {
            return Ok(compared);
        }
        if report.has_list {
            self.settle_list(caller, word, &ours, now).await?;
            return Ok(compared);
        }
        let pair = (our_hash, asserted.hash.clone(), word.detectors.signature());
        compared.differs = true;
        compared.want_list = self.may_ask(node, pair);
        Ok(compared)
    }

    /// Whether everything up to the report's number is stored here, or was acknowledged and won't
    /// come again: a store that was lost, or restored from an older copy, has it from the list.
    fn is_caught_up(&self, node: &NodeName, report: &ReportRequest) -> Result<bool, Status> {
        let spool = report.spool.as_ref();
        let nothing_to_send = spool.is_some_and(|spool| spool.oldest.is_none());
        if report.last_number == 0 || nothing_to_send {
            return Ok(true);
        }
        let stored = self
            .reports
            .store()
            .last_stored_number(node, &report.spool_id);
        let stored = stored.map_err(|error| internal(&error))?;
        Ok(stored.is_some_and(|stored| stored >= report.last_number))
    }

    fn asserted_here(&self, node: &NodeName) -> Result<Vec<Closable>, Status> {
        let store = self.reports.store();
        let asserted = store.asserted_set(node).map_err(|error| internal(&error))?;
        let mut ours = Vec::with_capacity(asserted.len());
        for fault in asserted {
            let stored = store.fault(&fault.id).map_err(|error| internal(&error))?;
            let detector = stored
                .map(|f| compare::detector_of(&f.event))
                .unwrap_or_default();
            ours.push(Closable { fault, detector });
        }
        Ok(ours)
    }

    /// Takes in what is missing here and closes what is missing there.
    async fn settle_list(
        &self,
        caller: &Caller,
        word: &Word<'_>,
        ours: &[Closable],
        now: Timestamp,
    ) -> Result<(), Status> {
        let Word { node, report, .. } = *word;
        let mut events = accept_list(&self.transformers, caller, node, report, now)
            .inspect_err(|_| self.count_refusal("bad_list"))?;
        // What an override made healthy is no fault here, whatever the agent asserts.
        let all = events.len();
        events.retain(|event| !event.event.is_healthy);
        let overridden = events.len() < all;
        let listed: Vec<HealthEvent> = events.iter().map(|e| e.event.clone()).collect();
        let theirs = compare::identities(&listed);
        let known: HashSet<SentIdentity> = ours.iter().map(|c| c.fault.sent).collect();
        let missing_here: Vec<NewEvent> = events
            .into_iter()
            .filter(|e| {
                compare::identities_of(&e.event)
                    .iter()
                    .any(|id| !known.contains(id))
            })
            .collect();
        let gone = if word.contested {
            Vec::new()
        } else {
            let (spool, last) = (&report.spool_id, report.last_number);
            missing_there(ours, &theirs, word.detectors, spool, last)
        };
        let store = self.reports.store();
        if !missing_here.is_empty() {
            store
                .append(missing_here)
                .await
                .map_err(|error| status_of(&error))?;
        }
        for id in gone {
            let closed = store
                .close_fault(&id, CloseCause::NoLongerAsserted, now)
                .await;
            closed.map_err(|error| status_of(&error))?;
        }
        crash::point("report.after-close");
        // What was appended may have been known, and what was closed may be told of later.
        let before = SentIdentity::hash_of_set(ours.iter().map(|c| c.fault.sent));
        let after: BTreeSet<SentIdentity> = self
            .asserted_here(node)?
            .iter()
            .map(|c| c.fault.sent)
            .collect();
        let hash = SentIdentity::hash_of_set(after.iter().copied());
        if overridden && after == theirs {
            let asserted = report.asserted.as_ref();
            let asserted = asserted.map(|asserted| asserted.hash.clone());
            self.reports
                .asked()
                .agree(node, hash, asserted.unwrap_or_default());
        }
        if hash == before {
            self.count("unchanged");
            self.log_once(node);
        } else {
            self.count("reconciled");
        }
        Ok(())
    }

    /// The last events of the faults that this agent's detectors have open here.
    fn adoptable(&self, node: &NodeName) -> Result<Vec<pb::HealthEvent>, Status> {
        let mut adopt = Vec::new();
        let mut bytes = 0;
        let store = self.reports.store();
        for asserted in store.asserted_set(node).map_err(|error| internal(&error))? {
            let fault = store
                .fault(&asserted.id)
                .map_err(|error| internal(&error))?;
            let Some(fault) = fault.filter(|fault| fault.open) else {
                continue;
            };
            let event = pb::HealthEvent::from(fault.event);
            bytes += event.encoded_len();
            if adopt.len() >= MOST_ADOPTED || bytes > MOST_ADOPTED_BYTES {
                warn!(%node, "more open faults than an agent can take over in one answer");
                break;
            }
            if !adopt.contains(&event) {
                adopt.push(event);
            }
        }
        self.count("adopted");
        Ok(adopt)
    }

    fn may_ask(&self, node: &NodeName, pair: Pair) -> bool {
        let may = self.reports.asked().may_ask(node, pair, Instant::now());
        self.count(if may { "asked" } else { "not_asked" });
        may
    }

    fn forget(&self, node: &NodeName) {
        self.reports.asked().forget(node);
    }

    fn log_once(&self, node: &NodeName) {
        if self.reports.asked().may_log(node) {
            warn!(
                %node,
                "the agent's list of asserted faults changed nothing although the sets differ; \
                 nothing is altered"
            );
        }
    }

    fn count_refusal(&self, code: &str) {
        let label = RefusalLabel {
            code: code.to_owned(),
            mode: "refused".to_owned(),
        };
        self.metrics.ingest_refused.get_or_create(&label).inc();
    }

    fn count(&self, outcome: &str) {
        let label = OutcomeLabel {
            outcome: outcome.to_owned(),
        };
        self.metrics.report_lists.get_or_create(&label).inc();
    }
}

/// What an agent says.
#[derive(Debug, Clone, Copy)]
struct Word<'a> {
    node: &'a NodeName,
    report: &'a ReportRequest,
    detectors: &'a DetectorStates,
    /// Another agent says something too: what this one does not assert the other one may.
    contested: bool,
}

/// What came of comparing an agent's faults with the store's.
#[derive(Debug, Default)]
struct Compared {
    /// Its list is wanted.
    want_list: bool,
    /// What it has to take over.
    adopt: Vec<pb::HealthEvent>,
    /// All that it had sent before is here.
    caught_up: bool,
    /// The sets differ, and its list is not here.
    differs: bool,
}

impl Compared {
    /// What another machine's agent asserts says nothing of this node, and "settled" is not said of
    /// it.
    fn with_nobody() -> Self {
        Self {
            caught_up: true,
            differs: true,
            ..Self::default()
        }
    }
}

#[tonic::async_trait]
impl Agent for ReportService {
    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportReply>, Status> {
        // As with events: a caller that hangs up does not leave half a reconciliation behind.
        let service = self.clone();
        let work = tokio::spawn(async move { service.take_in(request).await });
        let done = work.await;
        let reply =
            done.unwrap_or_else(|_| Err(Status::internal("taking the report in failed")))?;
        Ok(Response::new(reply))
    }
}

fn internal(error: &event_store::ReadError) -> Status {
    Status::unavailable(format!("{error} [{}]", error.code()))
}

/// The report's node, if the report is within all bounds.
fn check(report: &ReportRequest) -> Result<NodeName, String> {
    let node = NodeName::new(&report.node_name).map_err(|e| format!("node_name: {e}"))?;
    let texts = [
        ("boot_id", &report.boot_id),
        ("machine_id", &report.machine_id),
        ("agent_version", &report.agent_version),
        ("spool_id", &report.spool_id),
        ("process_id", &report.process_id),
    ];
    let detector_names = report.detectors.iter().map(|d| ("detectors.name", &d.name));
    for (field, text) in texts.into_iter().chain(detector_names) {
        if text.len() > LONGEST_TEXT || text.chars().any(char::is_control) {
            return Err(format!(
                "{field}: want at most {LONGEST_TEXT} bytes, no control characters"
            ));
        }
    }
    if report.process_id.is_empty() || report.spool_id.is_empty() {
        return Err("process_id, spool_id: want a ULID".to_owned());
    }
    if report.detectors.len() > MOST_DETECTORS {
        return Err(format!("detectors: want at most {MOST_DETECTORS}"));
    }
    if report
        .asserted
        .as_ref()
        .is_some_and(|asserted| asserted.hash.len() != 32)
    {
        return Err("asserted.hash: want 32 bytes".to_owned());
    }
    Ok(node)
}

/// The events of a list, checked like any others.
fn accept_list(
    transformers: &Transformers,
    caller: &Caller,
    node: &NodeName,
    report: &ReportRequest,
    now: Timestamp,
) -> Result<Vec<NewEvent>, Status> {
    let fingerprints: Vec<Fingerprint> = report
        .asserted_events
        .iter()
        .map(|e| Fingerprint::of(&wire::received_bytes(e.clone())))
        .collect();
    let batch = pb::HealthEvents {
        version: 1,
        events: report.asserted_events.clone(),
    };
    let accepted = wire::accept(batch, None, now).map_err(|refusal| refusal.status())?;
    let mut events = Vec::with_capacity(accepted.len());
    for (mut accepted, fingerprint) in accepted.into_iter().zip(fingerprints) {
        if accepted.event.node_name != node.as_str() {
            return Err(Status::invalid_argument(
                "asserted_events: want events of this node only",
            ));
        }
        transformers.apply(node, &mut accepted.event);
        let event = new_event(caller, node.clone(), accepted.event, fingerprint, now);
        let mut event = event.map_err(Status::invalid_argument)?;
        event.out_of_turn = true;
        events.push(event);
    }
    Ok(events)
}

fn state_after(
    before: &AgentState,
    report: &ReportRequest,
    detectors: &DetectorStates,
    boot: BootId,
    now: Timestamp,
) -> AgentState {
    let same_process = before.process_id == report.process_id;
    let settled = detectors.all_settled() && !report.started_from_nothing && !boot.is_unknown();
    AgentState {
        expected: true,
        settled_boot: settled.then(|| boot.clone()),
        process_id: report.process_id.clone(),
        process_changed_at: if same_process {
            before.process_changed_at
        } else {
            Some(now)
        },
        last_report_at: Some(now),
        boot,
        machine: report.machine_id.clone(),
        version: report.agent_version.clone(),
        spool: report.spool_id.clone(),
        unsettled: DetectorStates::unsettled(&report.detectors),
        ..before.clone()
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
