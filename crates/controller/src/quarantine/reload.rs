//! Rule sets that change: while the process runs, and over a restart.
//!
//! # Guarantees
//! - A file that can't be read, or that is wrong, changes nothing; people are told.
//! - New or altered rule sets that match more nodes than the breaker lets go at once are refused
//!   (`quarantine.rule_change`), at a start too, where those that ran before run. These never are.
//! - New rule sets decide once every node was read with the fields that they look at.
//! - Only rule sets are taken: that other keys differ is told, and they wait for the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use decide::quarantine::{Mode, Policy};
use decide::rules::RuleSets;
use event_store::{ReadError, StoredFault, WriteError};
use health_event::text::counted;
use health_event::{NodeName, Subject};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{info, warn};

use super::breaker::Breaker;
use super::work::Module;
use super::{facts, settings, startup};
use crate::checked::checked;
use crate::config::{self, Config, RuleChange};
use crate::context::Context;

/// How often the file is looked at. A kubelet brings a changed ConfigMap within a minute or two.
const LOOK: Duration = Duration::from_secs(5);
/// How long a read of the file may take before that is told.
const READ: Duration = Duration::from_secs(10);
/// How often rule sets that were refused are weighed again: faults close.
const AGAIN: Duration = Duration::from_secs(15);
/// Where the file is kept whose rule sets ran last.
const RAN: &str = "quarantine/rules";
/// Problems that are told of a file; `warden config check` tells all.
const TOLD: usize = 20;
/// Before keys whose change takes effect without a restart.
const TAKEN: [&str; 3] = [
    "quarantine.shipped_on",
    "quarantine.shipped_off",
    "quarantine.rule-sets",
];

/// The rule sets that decide now.
#[derive(Debug)]
pub(super) struct Rules(RwLock<Arc<RuleSets>>);

impl Rules {
    pub(super) fn new(sets: RuleSets) -> Self {
        Self(RwLock::new(Arc::new(sets)))
    }

    /// For one decision.
    pub(super) fn now(&self) -> Arc<RuleSets> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, sets: RuleSets) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(sets);
    }
}

/// Why rule sets can't be taken now.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReloadError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ReloadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read(error) => error.code(),
            Self::Write(error) => error.code(),
        }
    }
}

/// What new rule sets would do to one pool.
#[derive(Debug, PartialEq, Eq)]
struct Beyond {
    pool: String,
    would: usize,
    free: usize,
    /// The rule set that matches most of these nodes.
    rule: String,
}

impl std::fmt::Display for Beyond {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "new or altered rule sets match the open faults of {} of pool {} that {} in service, most of \
             them by {:?}, and its breaker lets {} go now. Correct the rule set, wait until faults close or \
             nodes come back, or set quarantine.rule_change = \"warn\" and restart",
            counted(self.would as u64, "node"),
            self.pool,
            if self.would == 1 { "is" } else { "are" },
            self.rule,
            self.free
        )
    }
}

/// Which rule sets to begin with: the file's, unless those that ran before have to stay.
pub(super) async fn begin(
    context: &Context,
    policy: &Policy,
    breaker: &Breaker,
    of_file: RuleSets,
) -> Result<RuleSets, ReloadError> {
    if policy.mode != Mode::Enforce {
        return Ok(of_file);
    }
    let text = context.file.text();
    let ran = context.store.state_get(RAN)?;
    let ran = ran.and_then(|bytes| String::from_utf8(bytes).ok());
    let before = ran.filter(|ran| ran != text).and_then(|ran| compiled(&ran));
    if let Some(before) = before
        && let Some(beyond) = beyond(context, policy, breaker, &before, &of_file)?
        && is_refused(context, &beyond)
    {
        let why = beyond.to_string();
        context
            .file
            .tell_problem(&context.metrics, Some(("rules_beyond_breaker", why)));
        let wanted = settings::wanted(&context.config.quarantine, &before);
        context.nodes.want(&wanted).await;
        return Ok(before);
    }
    keep(context, text).await?;
    Ok(of_file)
}

/// The rule sets of a file that ran before; none that this version would refuse.
fn compiled(text: &str) -> Option<RuleSets> {
    let sets = checked(text)
        .ok()
        .filter(|checked| checked.problems.is_empty())
        .and_then(|checked| checked.rules);
    if sets.is_none() {
        warn!(
            code = "rules_from_before",
            "the rule sets that ran before can't be read any more: those of the file run"
        );
    }
    sets
}

async fn keep(context: &Context, text: &str) -> Result<(), WriteError> {
    let bytes = text.as_bytes().to_vec();
    let put = context.store.state_put(RAN, bytes, context.fencing);
    put.await
}

fn is_refused(context: &Context, beyond: &Beyond) -> bool {
    match context.config.quarantine.rule_change {
        RuleChange::Refuse => true,
        RuleChange::Warn => {
            warn!(code = "rules_beyond_breaker", "{beyond}");
            false
        }
    }
}

/// Whether new or altered rule sets match more nodes with open faults, and without an incident, than the
/// breaker lets go now.
fn beyond(
    context: &Context,
    policy: &Policy,
    breaker: &Breaker,
    before: &RuleSets,
    sets: &RuleSets,
) -> Result<Option<Beyond>, ReadError> {
    let altered = sets.altered(before);
    if altered.is_empty() {
        return Ok(None);
    }
    let open = context.store.open_incidents()?;
    let has_incident: BTreeSet<&str> = open.iter().map(|i| i.node_uid.as_str()).collect();
    let mut of_node: BTreeMap<NodeName, Vec<StoredFault>> = BTreeMap::new();
    for fault in context.store.open_faults_all()? {
        if let Subject::Node(node) = &fault.id.scope.subject {
            of_node.entry(node.clone()).or_default().push(fault);
        }
    }
    let forcing = settings::forcing(&context.config.ingest);
    let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, faults) in of_node {
        let Some(node) = context.nodes.get(&name) else {
            continue;
        };
        let pool = context.nodes.pool_of(&node).to_owned();
        let seen = facts::node_facts(&node, &pool, policy, &context.config.quarantine);
        let protected = seen.control_plane || policy.protected_nodes.contains(&name);
        let left = seen.opted_out || (protected && !policy.allow_protected);
        if left || has_incident.contains(&*node.uid) {
            continue;
        }
        let mut matched = faults.into_iter().flat_map(|fault| {
            let (fault, _) = facts::fault_facts(fault, sets, &node, &forcing);
            fault.matched
        });
        if let Some(rule) = matched.find(|rule| altered.contains(rule.as_str())) {
            pools.entry(pool).or_default().push(rule);
        }
    }
    let now = Timestamp::now();
    let found = pools.into_iter().find_map(|(pool, rules)| {
        let size = context.nodes.pool_size(&pool);
        let free = breaker.lock().free(&breaker.config, &pool, size, now);
        (rules.len() > free).then(|| Beyond {
            would: rules.len(),
            free,
            rule: most_frequent(rules),
            pool,
        })
    });
    Ok(found)
}

fn most_frequent(rules: Vec<String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for rule in rules {
        *counts.entry(rule).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(rule, _)| rule).unwrap_or_default()
}

/// What a look at the file came to.
enum Outcome {
    Taken,
    /// The file is wrong.
    Bad(String),
    /// Beyond the breaker: weighed again.
    Refused(String),
}

/// Reads the file on a thread of its own: where a read does not end, as on a mount that is gone, that is told,
/// and neither the module nor the end of the process waits for it.
async fn read_file(context: &Context, path: &Path) -> io::Result<String> {
    let (tell, mut told) = oneshot::channel();
    let of_thread = path.to_owned();
    std::thread::Builder::new()
        .name("config".to_owned())
        .spawn(move || drop(tell.send(config::read_again(&of_thread))))?;
    loop {
        match tokio::time::timeout(READ, &mut told).await {
            Ok(Ok(read)) => return read,
            Ok(Err(_)) => return Err(io::Error::other("the thread that read it ended")),
            Err(_) => {
                let why = "reading the file does not end; check its mount".to_owned();
                let problem = Some(("config_unreadable", why));
                context.file.tell_problem(&context.metrics, problem);
            }
        }
    }
}

/// Follows the file until the future is dropped.
pub(super) async fn follow(module: &Module) {
    let context = &module.context;
    let Some(path) = context.file.path() else {
        return std::future::pending().await;
    };
    let refused_at_start = context.file.told().problem.is_some();
    let mut seen = Some(context.file.text().to_owned());
    let mut again = refused_at_start.then(|| Instant::now() + AGAIN);
    loop {
        tokio::time::sleep(LOOK).await;
        let text = match read_file(context, path).await {
            Ok(text) => text,
            Err(error) => {
                let why = format!("the file can't be read: {error}; check it and its mount");
                context
                    .file
                    .tell_problem(&context.metrics, Some(("config_unreadable", why)));
                seen = None;
                continue;
            }
        };
        if seen.as_ref() == Some(&text) && again.is_none_or(|at| Instant::now() < at) {
            continue;
        }
        let outcome = match take(module, &text).await {
            Ok(outcome) => outcome,
            Err(error) => {
                // The next look tries again.
                warn!(code = error.code(), %error, "a changed configuration can't be taken yet");
                continue;
            }
        };
        seen = Some(text);
        again = None;
        let problem = match outcome {
            Outcome::Taken => None,
            Outcome::Bad(why) => Some(("config_bad", why)),
            Outcome::Refused(why) => {
                again = Some(Instant::now() + AGAIN);
                Some(("rules_beyond_breaker", why))
            }
        };
        context.file.tell_problem(&context.metrics, problem);
    }
}

async fn take(module: &Module, text: &str) -> Result<Outcome, ReloadError> {
    let context = &module.context;
    let read = {
        let text = text.to_owned();
        // Large rule sets take some seconds.
        tokio::task::spawn_blocking(move || read(&text)).await
    };
    let (config, sets) = match read {
        Ok(Ok(read)) => read,
        Ok(Err(why)) => return Ok(Outcome::Bad(why)),
        Err(error) => return Ok(Outcome::Bad(error.to_string())),
    };
    context.file.tell_restart(needs_restart(context, &config));
    let before = module.rules.now();
    let same = before.sets().len() == sets.sets().len() && {
        let mut pairs = before.sets().iter().zip(sets.sets());
        pairs.all(|(a, b)| a.config == b.config)
    };
    if same {
        return Ok(Outcome::Taken);
    }
    if module.policy.mode == Mode::Enforce {
        let beyond = beyond(context, &module.policy, &module.breaker, &before, &sets)?;
        if let Some(beyond) = beyond
            && is_refused(context, &beyond)
        {
            return Ok(Outcome::Refused(beyond.to_string()));
        }
    }
    context
        .nodes
        .want(&settings::wanted(&context.config.quarantine, &sets))
        .await;
    if module.policy.mode == Mode::Enforce {
        // Before they decide: a new process must not take them for new ones.
        keep(context, text).await?;
    }
    let altered: Vec<&str> = sets.altered(&before).into_iter().collect();
    info!(
        code = "rules_changed",
        rule_sets = sets.sets().iter().filter(|s| s.config.enabled).count(),
        altered = altered.join(", "),
        "the rule sets of the file decide from now on"
    );
    module.rules.put(sets);
    for node in startup::nodes_to_look_at(context)? {
        module.workers.wake(&node);
    }
    Ok(Outcome::Taken)
}

/// The file's configuration and rule sets, or all that is wrong.
fn read(text: &str) -> Result<(Config, RuleSets), String> {
    let checked = checked(text).map_err(|error| error.to_string())?;
    let sets = match checked.rules {
        Some(sets) if checked.problems.is_empty() => sets,
        Some(_) | None => {
            let problems = checked.problems.iter();
            let mut lines: Vec<String> = problems.take(TOLD).map(ToString::to_string).collect();
            let more = checked.problems.len().saturating_sub(TOLD);
            if more > 0 {
                lines.push(format!("and {more} more: `warden config check` tells all"));
            }
            return Err(lines.join("; "));
        }
    };
    for warning in &checked.warnings {
        warn!(target: "controller::config", "{}: {}", warning.key, warning.allowed);
    }
    Ok((checked.config, sets))
}

/// The keys of a file that differ from those at the start, but for the rule sets.
fn needs_restart(context: &Context, config: &Config) -> Vec<String> {
    let Ok((at_start, _)) = Config::parse_all(context.file.text()) else {
        return Vec::new();
    };
    let values = |config: &Config| -> BTreeMap<String, String> {
        let keys = config.keys().iter();
        keys.map(|key| (key.key.clone(), key.value.clone()))
            .collect()
    };
    let (before, now) = (values(&at_start), values(config));
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let differs = |key: &&String| {
        let taken = TAKEN.iter().any(|taken| key.starts_with(taken));
        before.get(*key) != now.get(*key) && !taken
    };
    keys.into_iter().filter(differs).cloned().collect()
}
