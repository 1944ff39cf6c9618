//! From what is stored and cached to what the API shows.

mod boots;
mod faults;
mod incidents;
mod lines;
mod stages;

use std::sync::Arc;

use event_store::{IncidentFilter, ReadError, Stats, StoredEvent, StoredTransition};
use health_event::checks::{AGENT_CONFLICT, AGENT_MACHINE};
use health_event::incident::{self, QuarantineStatus};
use health_event::{NodeName, keys};
use jiff::Timestamp;
use k8s_api::names;

use super::types;
use crate::config::JanitorConfig;
use crate::connector;
use crate::context::Context;
use crate::nodes::{ConditionStatus, NodeFacts, NodeTaint};
use crate::quarantine;
use crate::reports::{AgentState, Standing};
use faults::{Place, closed_fault, fault, is_doubt, is_restored, origin};
use incidents::{is_out, is_withheld};

pub(super) use faults::fault_id;
pub(super) use incidents::incident;
pub(super) use lines::node_lines;
use lines::{by_node, fatal_by_node, is_in_service};

/// Incidents of a node that are shown.
const SHOWN_INCIDENTS: usize = 20;
/// Closed faults that one answer shows.
const SHOWN_CLOSED: usize = 20;

pub(super) fn status(context: &Context, now: Timestamp) -> Result<types::Status, ReadError> {
    let stats = context.store.stats()?;
    let (ready, parts) = context.readiness.report();
    let nodes = context.nodes.all();
    let (mut silent, mut missing, mut other_boot) = (0, 0, 0);
    for node in &nodes {
        let (agent, word) = agent_word(context, &node.name, Some(node), now)?;
        match word {
            "silent" => silent += 1,
            "none" => missing += 1,
            _ => {}
        }
        let differ = boots::differ(context, node, &agent, now);
        other_boot += usize::from(differ.is_some_and(|differ| differ.late));
    }
    let faults = context.store.open_faults_all()?;
    let doubtful = |check| faults.iter().filter(|f| is_doubt(&f.id, check)).count();
    let open = context.store.open_incidents()?;
    let out = open.iter().filter(|i| is_out(context, i)).count();
    let withheld = open.iter().filter(|i| is_withheld(&i.quarantine)).count();
    let fatal = fatal_by_node(&faults);
    let incidents = by_node(&open);
    let in_service = |node: &&Arc<NodeFacts>| {
        let incident = incidents.get(&node.name).copied();
        fatal.contains_key(&node.name) && is_in_service(context, incident)
    };
    let config = &context.config;
    Ok(types::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        profile: context.config.profile.as_str().to_owned(),
        dry_run: context.config.quarantine.dry_run,
        quarantine: mode_word(config.quarantine.enabled, config.quarantine.dry_run).to_owned(),
        other_quarantine: quarantine::other(&context.store)?,
        other_quarantine_looked_at: looked_at(context),
        drain: mode_word(config.drain.enabled, config.drain.dry_run).to_owned(),
        remediation: mode_word(config.remediation.enabled, config.remediation.dry_run).to_owned(),
        janitor: janitor_word(&config.janitor).to_owned(),
        ready,
        parts: parts.lines().map(str::to_owned).collect(),
        nodes: nodes.len(),
        out,
        withheld,
        draining: open.iter().filter(|i| stages::drains(i)).count(),
        repairing: open.iter().filter(|i| stages::repairs(i)).count(),
        need_person: open
            .iter()
            .filter(|i| stages::needs_person(context, i))
            .count(),
        open_faults: stats.open_faults,
        observed_faults: stats.observed_faults,
        restored_faults: faults.iter().filter(|fault| is_restored(fault)).count(),
        foreign_marked: nodes
            .iter()
            .filter(|node| node.foreign_marks().next().is_some())
            .count(),
        agents_silent: silent,
        agents_missing: missing,
        agents_conflicting: doubtful(AGENT_CONFLICT),
        agents_other_machine: doubtful(AGENT_MACHINE),
        agents_other_boot: other_boot,
        fatal_in_service: nodes.iter().filter(in_service).count(),
        pool_faults: pool_faults(context)?,
        missing_rights: missing_rights(context),
        config: config_state(context),
        store: types::Store {
            id: context.store.store_id().to_owned(),
            last_seq: stats.last_seq,
            first_seq: stats.first_seq,
            live_bytes: stats.live_bytes,
            free_bytes: stats.free_bytes,
            gaps: gaps(&stats),
        },
    })
}

fn config_state(context: &Context) -> types::ConfigState {
    let told = context.file.told();
    types::ConfigState {
        problem: told.problem.map(|problem| types::ConfigProblem {
            code: problem.code.to_owned(),
            why: problem.why,
            since: problem.since,
        }),
        needs_restart: told.needs_restart,
    }
}

fn gaps(stats: &Stats) -> Vec<types::Gap> {
    let of_consumers = stats.gaps.iter().map(|(consumer, gap)| types::Gap {
        of: format!("consumer {consumer}"),
        from: gap.from,
        to: gap.to,
        count: gap.count,
        at: gap.at,
    });
    let of_senders = stats.shed.iter().map(|shed| types::Gap {
        of: format!("sender {}", shed.sender),
        from: shed.from,
        to: shed.to,
        count: shed.events,
        at: shed.at,
    });
    of_consumers.chain(of_senders).collect()
}

/// When it was last asked whether another quarantine runs.
fn looked_at(context: &Context) -> Option<Timestamp> {
    let second = context.metrics.other_quarantine_looked_at.get();
    let at = Timestamp::from_second(second).ok();
    at.filter(|_| second > 0)
}

/// What a module does, as [`types::Status::quarantine`] says it.
fn mode_word(enabled: bool, dry_run: bool) -> &'static str {
    match (enabled, dry_run) {
        (false, _) => "off",
        (true, true) => "dry_run",
        (true, false) => "enforce",
    }
}

/// What the janitor does, as [`types::Status::janitor`] says it.
fn janitor_word(config: &JanitorConfig) -> &'static str {
    match (config.enabled, config.manual) {
        (false, _) => "off",
        (true, true) => "manual",
        (true, false) => "enforce",
    }
}

fn missing_rights(context: &Context) -> Vec<types::MissingRight> {
    let missing = context.kube.rights().missing().into_iter();
    let shown = missing.map(|(right, since)| types::MissingRight {
        verb: right.verb.to_owned(),
        missed: right.missed().to_owned(),
        resource: right.resource,
        since,
    });
    shown.collect()
}

fn pool_faults(context: &Context) -> Result<Vec<types::PoolFault>, ReadError> {
    let open = context.store.open_faults_of_no_node()?.into_iter();
    let shown = open.map(|fault| types::PoolFault {
        subject: fault.id.scope.subject.to_string(),
        check: fault.id.scope.check_name,
        message: fault.event.message,
        since: fault.opened_at,
    });
    Ok(shown.collect())
}

pub(super) fn node(
    context: &Context,
    name: &NodeName,
    now: Timestamp,
) -> Result<types::Node, ReadError> {
    let object = context.nodes.get(name);
    let (agent, word) = agent_word(context, name, object.as_deref(), now)?;
    let machine = object
        .as_ref()
        .map_or(agent.machine.as_str(), |node| node.machine());
    let machine = context.store.machine(machine)?;
    let place = Place {
        node: object.as_deref(),
        machine: machine.as_deref(),
    };
    let holds = machine.iter().flat_map(|machine| &machine.holds);
    let filter = IncidentFilter {
        node: Some(name.clone()),
        ..IncidentFilter::default()
    };
    let incidents = context.store.incidents(&filter, SHOWN_INCIDENTS)?;
    let differ = object.as_deref();
    let differ = differ.and_then(|node| boots::differ(context, node, &agent, now));
    Ok(types::Node {
        boots_differ: differ,
        name: name.to_string(),
        object: object
            .as_deref()
            .map(|node| node_object(context, node))
            .transpose()?,
        agent: types::Agent {
            state: word.to_owned(),
            version: agent.version,
            last_report_at: agent.last_report_at,
            process_since: agent.process_changed_at,
            boot_id: agent.boot.to_string(),
            machine_id: agent.machine.clone(),
            unsettled: agent.unsettled,
        },
        faults: context
            .store
            .open_faults(name)?
            .iter()
            .cloned()
            .map(|stored| fault(stored, &place))
            .collect(),
        observed: context
            .store
            .observed(name)?
            .into_iter()
            .map(|stored| fault(stored, &place))
            .collect(),
        incidents: incidents.iter().map(|i| incident(context, i)).collect(),
        holds: holds
            .map(|hold| types::Hold {
                actor: hold.actor.clone(),
                until: hold.until,
                faults: hold.faults.iter().map(|held| held.id.to_string()).collect(),
            })
            .collect(),
        closed: context
            .store
            .closed_faults(name, SHOWN_CLOSED)?
            .into_iter()
            .filter_map(|closed| closed_fault(closed, &place))
            .collect(),
        reboots: stages::reboots(context, name, &agent.machine, object.as_deref()),
    })
}

fn node_object(context: &Context, node: &NodeFacts) -> Result<types::NodeObject, ReadError> {
    let taint = |taint: &NodeTaint| format!("{}={}:{}", taint.key, taint.value, taint.effect);
    let refused = write_refused(context, node)?;
    Ok(types::NodeObject {
        uid: node.uid.to_string(),
        pool: context.nodes.pool_of(node).to_owned(),
        cordoned: node.is_cordoned(),
        taints: node.taints.iter().flatten().map(taint).collect(),
        ready: ready(node),
        boot_id: node.boot_id.to_string(),
        system_uuid: node.system_uuid.to_string(),
        blocked_by: blocked_by(context, node, refused.as_ref())?,
        foreign_marks: node.foreign_marks().map(str::to_owned).collect(),
        unconfirmed: connector::unconfirmed(&context.store, node)?,
        write_refused: refused,
    })
}

/// What on the node, or beside it, stands in the way of a step.
fn blocked_by(
    context: &Context,
    node: &NodeFacts,
    refused: Option<&types::WriteRefused>,
) -> Result<Vec<String>, ReadError> {
    let config = &context.config.quarantine;
    let mut list = Vec::new();
    if node.annotation(names::PAUSE.text).is_some() {
        list.push("paused".to_owned());
    }
    if node.label(names::MANAGED_BY.text) == Some("false") {
        list.push("opted_out".to_owned());
    }
    if node.label(names::CONTROL_PLANE.text).is_some() && !config.allow_protected {
        list.push("control_plane".to_owned());
    }
    let is_listed = config.protected_nodes.contains(node.name.as_str());
    if is_listed && !config.allow_protected {
        list.push("protected".to_owned());
    }
    if let Some(owner) = node.external_owner(&config.external_owners) {
        list.push(format!("external_owner {owner}"));
    }
    if quarantine::waits_for_word(&context.store, &node.name)? {
        list.push("given_back".to_owned());
    }
    list.extend(refused.map(|refused| format!("write_refused {}", refused.message)));
    if let Some(what) = quarantine::other(&context.store)? {
        list.push(format!("other_quarantine {what}"));
    }
    Ok(list)
}

/// What the API server said last against the write that is under way.
fn write_refused(
    context: &Context,
    node: &NodeFacts,
) -> Result<Option<types::WriteRefused>, ReadError> {
    let open = context.store.open_incidents_of(&node.name)?;
    let writes = |incident: &incident::Incident| {
        matches!(
            incident.quarantine,
            QuarantineStatus::Applying | QuarantineStatus::Releasing(_)
        )
    };
    let said = context.refusals.of(&node.name);
    let said = said.filter(|_| open.iter().any(writes));
    Ok(said.map(|said| types::WriteRefused {
        code: said.code.to_owned(),
        message: said.text,
        since: said.since,
        last_at: said.last_at,
        times: said.times,
        next_at: said.next_at,
    }))
}

fn ready(node: &NodeFacts) -> String {
    let word = match node.ready {
        Some(ConditionStatus::True) => "True",
        Some(ConditionStatus::False) => "False",
        Some(ConditionStatus::Unknown) | None => "Unknown",
    };
    word.to_owned()
}

/// The agent and one word for it.
fn agent_word(
    context: &Context,
    name: &NodeName,
    object: Option<&NodeFacts>,
    now: Timestamp,
) -> Result<(AgentState, &'static str), ReadError> {
    let agent = context.reports.agent(name)?;
    let since = object.map_or(now, |node| node.created_at);
    let word = if !agent.expected {
        "none"
    } else if matches!(
        context
            .reports
            .standing(&agent, context.nodes.len(), since, now),
        Standing::Silent(_)
    ) {
        "silent"
    } else if agent.settled_boot.is_some() {
        "settled"
    } else {
        "starting"
    };
    Ok((agent, word))
}

pub(super) fn step(step: StoredTransition) -> types::Step {
    types::Step {
        seq: step.seq,
        incident: step.incident.to_string(),
        node: step.node.to_string(),
        at: step.at,
        module: step.module,
        from: step.from,
        to: step.to,
        cause: serde_json::from_str(&step.cause)
            .unwrap_or_else(|_| serde_json::Value::String(step.cause.clone())),
    }
}

pub(super) fn event(event: StoredEvent) -> types::Event {
    let body = wire::decode_body(&event.body).unwrap_or_default();
    let origin = origin(&body);
    types::Event {
        seq: event.seq,
        sender: event.sender.to_string(),
        id: event.id,
        node: match event.subject {
            health_event::Subject::Node(node) => node.to_string(),
            many @ (health_event::Subject::Pool(_) | health_event::Subject::Cluster) => {
                many.to_string()
            }
        },
        generated_at: event.generated_at,
        received_at: event.received_at,
        strategy: event.strategy.name().to_owned(),
        healthy: event.healthy,
        fatal: event.fatal,
        agent: event.agent,
        component_class: event.component_class,
        check: event.check_name,
        codes: body.error_codes,
        entities: body
            .entities
            .iter()
            .map(|e| format!("{} {}", e.kind, e.value))
            .collect(),
        injected: body.metadata.contains_key(keys::INJECTED),
        origin,
        message: body.message,
    }
}

pub(super) fn breaker(context: &Context) -> Result<Vec<types::BreakerPool>, ReadError> {
    let open = context.store.open_incidents()?;
    let mut pools = Vec::new();
    let bounds = quarantine::bounds(&context.config.quarantine);
    for pool in context.nodes.pool_names() {
        let size = context.nodes.pool_size(pool);
        let of_pool = || open.iter().filter(|incident| incident.pool == pool);
        // What the quarantine module keeps of a pool; its `trip` is null while closed.
        let kept = context.store.state_get(&format!("breaker/{pool}"))?;
        let kept: Option<serde_json::Value> =
            kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let trip = kept.and_then(|kept| kept.get("trip").filter(|t| !t.is_null()).cloned());
        pools.push(types::BreakerPool {
            pool: pool.to_owned(),
            nodes: size,
            out: of_pool().filter(|i| is_out(context, i)).count(),
            withheld: of_pool()
                .filter(|i| is_withheld(&i.quarantine))
                .map(|i| i.node.to_string())
                .collect(),
            tripped: trip.is_some(),
            off: !bounds.enabled,
            level_bound: bounds.enabled.then(|| bounds.level_bound(size)),
            rate_bound: bounds.enabled.then(|| bounds.rate_bound(size)),
            window_seconds: u64::try_from(bounds.window.as_secs()).ok(),
            trip,
        });
    }
    Ok(pools)
}
