//! Values that are right by themselves and contradict each other: each keeps something from ever
//! happening. Told as warnings, with both keys and what to do: what runs is safe all the same.

use std::time::Duration;

use health_event::RecommendedAction;

use super::{Config, Problem, Profile};

/// Everything of a configuration that contradicts itself.
pub(super) fn contradictions(config: &Config) -> Vec<Problem> {
    let mut look = Look {
        config,
        found: Vec::new(),
    };
    look.sources();
    look.stages();
    look.drain();
    look.ladder();
    look.superseding();
    look.attempts();
    look.janitor();
    look.quarantine();
    look.found
}

struct Look<'a> {
    config: &'a Config,
    found: Vec<Problem>,
}

impl Look<'_> {
    fn tell(&mut self, key: &str, better: String) {
        self.found.push(Problem {
            key: key.to_owned(),
            value: self.value(key).to_owned(),
            allowed: better,
        });
    }

    /// A value in effect, as TOML.
    fn value(&self, key: &str) -> &str {
        let mut keys = self.config.keys().iter();
        keys.find(|known| known.key == key)
            .map_or("", |known| known.value.as_str())
    }

    /// `KEY (VALUE)`.
    fn named(&self, key: &str) -> String {
        format!("{key} ({})", self.value(key).trim_matches('"'))
    }

    /// Stages that wait for a stage that does not act.
    fn stages(&mut self) {
        let Config {
            quarantine,
            drain,
            remediation,
            janitor,
            ..
        } = self.config;
        let takes_out = quarantine.enabled && !quarantine.dry_run;
        let drains = drain.enabled && !drain.dry_run;
        let repairs = remediation.enabled && !remediation.dry_run;
        let profile = self.config.profile;
        for (is_on, key, what, own) in [
            (drain.enabled, "drain.enabled", "drained", Profile::Drain),
            (
                remediation.enabled,
                "remediation.enabled",
                "repaired",
                Profile::Remediate,
            ),
        ] {
            if !is_on || takes_out {
                continue;
            }
            let better = if profile < Profile::Cordon {
                format!(
                    "false, or profile {}: in profile {} no node is taken out, and only nodes that are \
                     taken out are {what}, or shown as to be {what}",
                    own.as_str(),
                    profile.as_str()
                )
            } else {
                format!(
                    "false, or quarantine.enabled with quarantine.dry_run = false: only nodes that are \
                     taken out are {what}"
                )
            };
            self.tell(key, better);
        }
        if repairs && !drains && !remediation.without_drain {
            let better = "drains that act (drain.enabled = true, drain.dry_run = false); true would repair \
                          nodes with their pods on them: as it is no node is repaired, unless all its \
                          faults say to skip the drain";
            self.tell("remediation.without_drain", better.to_owned());
        }
        if repairs && !janitor.enabled {
            let better = "true, unless another janitor runs that carries RebootNode objects out: else \
                          repairs are ordered and nobody begins them, until a person is called";
            self.tell("janitor.enabled", better.to_owned());
        }
    }

    /// What can never come in, or not be kept.
    fn sources(&mut self) {
        let Config { ingest, store, .. } = self.config;
        if !ingest.enabled {
            let better = "true: as it is neither events nor agents' reports are taken in, so that no fault \
                          is ever found";
            self.tell("ingest.enabled", better.to_owned());
        } else if ingest.listen.is_none() && ingest.plaintext_listen.is_none() {
            let better = "an address, here or for ingest.plaintext_listen: as it is nobody can send \
                          anything, and no fault is ever found";
            self.tell("ingest.listen", better.to_owned());
        }
        if store.reserve >= store.max_bytes {
            let better = format!(
                "less than {}: with less free space than the reserve no event is taken in, so that a volume \
                 made for the database would be too full from its first day",
                self.named("store.max_bytes")
            );
            self.tell("store.reserve", better);
        }
    }

    /// Rungs that come after one that contains them. Of a site's own actions no strength is known.
    fn ladder(&mut self) {
        let remediation = &self.config.remediation;
        if !remediation.enabled {
            return;
        }
        let rungs = remediation.ladder.iter();
        let known = rungs.filter_map(|name| Some((name, RecommendedAction::from_name(name)?)));
        let known: Vec<_> = known.collect();
        let falls = known.windows(2).find_map(|pair| match pair {
            [(before, stronger), (after, weaker)] => {
                (stronger.strength() >= weaker.strength()).then_some((before, after))
            }
            _ => None,
        });
        if let Some((before, after)) = falls {
            let better = format!(
                "actions from weak to strong, each once: {after} after {before} is never climbed to, or \
                 tries the weaker repair when the stronger one did not help"
            );
            self.tell("remediation.ladder", better);
        }
    }

    /// Groups that are said to supersede others: every order stands back behind any other of its node.
    fn superseding(&mut self) {
        for (name, action) in &self.config.remediation.actions {
            if action.superseding.is_empty() {
                continue;
            }
            self.found.push(Problem {
                key: format!("remediation.remediationActions.{name}.supersedingEquivalenceGroups"),
                value: format!("{:?}", action.superseding),
                allowed: "left out: it has no effect. No repair is ordered while any other of the node is under way, \
                          of whatever group and whoever made it, and faults that the other one ends are not \
                          repaired again"
                    .to_owned(),
            });
        }
    }

    /// Deadlines of a drain that are over before a pod can be passed over.
    fn drain(&mut self) {
        const STUCK: &str = "drain.stuck_timeout";
        let drain = &self.config.drain;
        if !drain.enabled {
            return;
        }
        let waits = [
            ("drain.evictionTimeoutInSeconds", drain.grace),
            ("drain.notReadyTimeoutMinutes", drain.not_ready_timeout),
        ];
        let deadlines = [
            ("drain.immediate_deadline", Some(drain.immediate_deadline)),
            ("drain.completion_deadline", drain.completion_deadline),
        ];
        let (stuck, dead) = (drain.stuck_timeout, drain.dead_kubelet_timeout);
        for (key, deadline) in deadlines {
            let Some(deadline) = deadline else { continue };
            let mut longer: Vec<String> = Vec::new();
            for (other, wait) in waits {
                if deadline <= wait.saturating_add(stuck) {
                    let (other, stuck) = (self.named(other), self.named(STUCK));
                    longer.push(format!("{other} and {stuck} together"));
                }
            }
            if deadline <= dead {
                longer.push(self.named("drain.dead_kubelet_timeout"));
            }
            if !longer.is_empty() {
                let better = format!(
                    "longer than {}: else a drain is at its deadline before a pod that hangs is passed over",
                    longer.join(", and than ")
                );
                self.tell(key, better);
            }
        }
    }

    /// Attempts that end, or are forgotten, before they can have an end of their own.
    fn attempts(&mut self) {
        const TIMEOUT: &str = "janitor.timeout";
        let Config {
            remediation,
            janitor,
            ..
        } = self.config;
        if !remediation.enabled {
            return;
        }
        for (name, action) in &remediation.actions {
            if janitor.enabled && action.deadline <= janitor.timeout {
                let better = format!(
                    "longer than {}: else an attempt is given up while the janitor still waits for it",
                    self.named(TIMEOUT)
                );
                self.of_action(name, action.deadline, better);
            }
        }
        let longest = remediation.actions.values().map(|action| action.deadline);
        let longest = longest.max().unwrap_or_default();
        let all = u32::try_from(remediation.max_attempts)
            .map_or(Duration::MAX, |attempts| longest.saturating_mul(attempts));
        if !longest.is_zero() && remediation.attempts_window <= all {
            let better = format!(
                "longer than {} times the longest deadline of an action ({}): else the first attempt no \
                 longer counts once the last has failed, and no person is ever called",
                self.named("remediation.max_attempts"),
                shown(longest)
            );
            self.tell("remediation.attempts_window", better);
        }
        self.settles("remediation.settle_timeout", remediation.settle_timeout);
    }

    /// An agent speaks once in an interval, give or take a fifth.
    fn settles(&mut self, key: &str, timeout: Duration) {
        let interval = self.config.reports.interval;
        if timeout <= interval + interval / 5 {
            let better = format!(
                "longer than {} and a fifth of it: else a person is called before the node's agent can \
                 have told",
                self.named("reports.interval")
            );
            self.tell(key, better);
        }
    }

    /// A deadline may stand in no file: the actions have one by default.
    fn of_action(&mut self, name: &str, deadline: Duration, better: String) {
        self.found.push(Problem {
            key: format!("remediation.remediationActions.{name}.deadline"),
            value: toml::Value::from(shown(deadline)).to_string(),
            allowed: better,
        });
    }

    /// Spans of one reboot that are as long as all the time that it has.
    fn janitor(&mut self) {
        let janitor = &self.config.janitor;
        if !janitor.enabled {
            return;
        }
        let timeout = self.named("janitor.timeout");
        let spans = [
            (
                "janitor.no_reboot_after",
                janitor.no_reboot_after,
                "no reboot ever ends as NoRebootObserved, and so none is repeated by force",
            ),
            (
                "janitor.ask_interval",
                janitor.ask_interval,
                "the provider is not asked again whether it is done",
            ),
            (
                "janitor.call_timeout",
                janitor.provider.call_timeout,
                "a reboot is given up while the answer to its signal is still waited for",
            ),
        ];
        for (key, span, what) in spans {
            if span >= janitor.timeout {
                self.tell(key, format!("shorter than {timeout}: else {what}"));
            }
        }
        let ttl = janitor.default_ttl;
        if janitor.enable_ttl && !ttl.is_zero() && ttl <= janitor.timeout {
            let better = format!(
                "longer than {timeout}, or 0s: else an object goes as soon as it is over, and nobody sees \
                 how it ended"
            );
            self.tell("janitor.default_ttl", better);
        }
    }

    fn quarantine(&mut self) {
        let quarantine = &self.config.quarantine;
        let breaker = &quarantine.breaker;
        if !quarantine.enabled {
            return;
        }
        self.settles("quarantine.settle_timeout", quarantine.settle_timeout);
        if quarantine.allow_protected && !quarantine.protected_nodes.is_empty() {
            let better = "empty, or quarantine.allow_protected = false: as it is these nodes are acted on \
                          like all others";
            self.tell("quarantine.protected_nodes", better.to_owned());
        }
        if breaker
            .max_nodes
            .is_some_and(|most| most < breaker.min_nodes)
        {
            let least = self.named("quarantine.circuitBreaker.min_nodes");
            let better = format!("0, or at least {least}: else it has no effect");
            self.tell("quarantine.circuitBreaker.max_nodes", better);
        }
        let both = quarantine.shipped_on.intersection(&quarantine.shipped_off);
        let both: Vec<&str> = both.map(String::as_str).collect();
        if !both.is_empty() {
            let better = format!(
                "without {}: quarantine.shipped_off names it too",
                both.join(", ")
            );
            self.tell("quarantine.shipped_on", better);
        }
    }
}

/// As a file writes it.
fn shown(span: Duration) -> String {
    let seconds = span.as_secs();
    match (span.subsec_millis(), seconds) {
        (0, s) if s > 0 && s.is_multiple_of(3_600) => format!("{}h", s / 3_600),
        (0, s) if s > 0 && s.is_multiple_of(60) => format!("{}m", s / 60),
        (0, s) => format!("{s}s"),
        (_, _) => format!("{}ms", span.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let (config, problems) = Config::parse_all(text).unwrap();
        assert_eq!(problems, [], "{text}");
        let found = contradictions(&config);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_contradict_nothing_in_any_profile() {
        for profile in super::super::Profile::ALL {
            assert!(told(&format!("profile = '{}'", profile.as_str())).is_empty());
        }
    }

    /// Keys in profile remediate, the key that is told of, and what else the words name.
    #[rustfmt::skip]
    const PAIRS: &[(&str, &str, &[&str])] = &[
        ("[janitor]\ntimeout = '40m'",
            "remediation.remediationActions.RESTART_BM.deadline = \"35m\"", &["janitor.timeout (40m)"]),
        ("[remediation.remediationActions.RESTART_BM]\ndeadline = '25m'",
            "remediation.remediationActions.RESTART_BM.deadline = \"25m\"", &["janitor.timeout (25m)"]),
        ("[janitor]\nno_reboot_after = '25m'",
            "janitor.no_reboot_after = \"25m\"", &["janitor.timeout (25m)", "NoRebootObserved"]),
        ("[janitor]\nask_interval = '30m'", "janitor.ask_interval = \"30m\"", &["janitor.timeout (25m)"]),
        ("[janitor]\ncall_timeout = '25m'", "janitor.call_timeout = \"25m\"", &["janitor.timeout (25m)"]),
        ("[janitor]\ndefault_ttl = '10m'", "janitor.default_ttl = \"10m\"", &["janitor.timeout (25m)"]),
        ("[remediation]\nattempts_window = '1h'",
            "remediation.attempts_window = \"1h\"", &["remediation.max_attempts (2)", "(35m)"]),
        ("[remediation]\nsettle_timeout = '1m'",
            "remediation.settle_timeout = \"1m\"", &["reports.interval (60s)"]),
        ("[reports]\ninterval = '5m'\n[quarantine]\nsettle_timeout = '6m'",
            "quarantine.settle_timeout = \"6m\"", &["reports.interval (5m)"]),
        ("[drain]\nenabled = false", "remediation.without_drain = false", &["drain.enabled"]),
        ("[drain]\ndry_run = true", "remediation.without_drain = false", &["drain.dry_run"]),
        ("[quarantine]\nenabled = false", "remediation.enabled = true", &["quarantine.enabled"]),
        ("[quarantine]\ndry_run = true", "drain.enabled = true", &["quarantine.dry_run"]),
        ("[drain]\nimmediate_deadline = '10m'", "drain.immediate_deadline = \"10m\"",
            &["drain.notReadyTimeoutMinutes (5) and drain.stuck_timeout (5m)", "drain.dead_kubelet_timeout (10m)"]),
        ("[drain]\ncompletion_deadline = '6m'", "drain.completion_deadline = \"6m\"",
            &["drain.evictionTimeoutInSeconds (60) and drain.stuck_timeout (5m)"]),
        ("[quarantine]\nprotected_nodes = ['a']\nallow_protected = true",
            "quarantine.protected_nodes = [\"a\"]", &["quarantine.allow_protected"]),
        ("[quarantine.circuitBreaker]\nmin_nodes = 5\nmax_nodes = 4",
            "quarantine.circuitBreaker.max_nodes = 4", &["quarantine.circuitBreaker.min_nodes (5)"]),
        ("[quarantine]\nshipped_on = ['x', 'y']\nshipped_off = ['y']",
            "quarantine.shipped_on = [\"x\", \"y\"]", &["without y", "quarantine.shipped_off"]),
    ];

    #[test]
    fn each_pair_that_contradicts_itself_is_told_with_both_keys() {
        for (text, key, names) in PAIRS {
            let told = told(&format!("profile = 'remediate'\n{text}"));
            let of_key = told.iter().find(|line| line.starts_with(key));
            let Some(line) = of_key else {
                panic!("{text}: {told:?}")
            };
            for name in *names {
                assert!(line.contains(name), "{text}: {line}");
            }
        }
    }

    /// The same in whatever profile the text names.
    #[rustfmt::skip]
    const SILENT: &[(&str, &str, &[&str])] = &[
        ("[drain]\nenabled = true", "drain.enabled = true", &["profile drain", "in profile observe no node"]),
        ("[remediation]\nenabled = true",
            "remediation.enabled = true", &["profile remediate", "in profile observe no node"]),
        ("profile = 'silent'\n[drain]\nenabled = true", "drain.enabled = true", &["in profile silent no node"]),
        ("profile = 'cordon'\n[quarantine]\ndry_run = true\n[drain]\nenabled = true",
            "drain.enabled = true", &["quarantine.dry_run = false"]),
        ("profile = 'remediate'\n[janitor]\nenabled = false",
            "janitor.enabled = false", &["unless another janitor", "a person is called"]),
        ("[ingest]\nenabled = false", "ingest.enabled = false", &["no fault is ever found"]),
        ("[ingest]\nlisten = ''", "ingest.listen = \"\"", &["ingest.plaintext_listen", "no fault is ever found"]),
        ("profile = 'remediate'\n[remediation]\nladder = ['RESTART_BM', 'COMPONENT_RESET']",
            "remediation.ladder = [\"RESTART_BM\", \"COMPONENT_RESET\"]",
            &["COMPONENT_RESET after RESTART_BM", "weak to strong"]),
        ("profile = 'remediate'\n[remediation]\nladder = ['RESTART_BM', 'RESTART_BM']",
            "remediation.ladder", &["each once"]),
        ("[store]\nreserve = '4GiB'", "store.reserve = \"4GiB\"", &["less than store.max_bytes (2GiB)"]),
        ("[store]\nmax_bytes = '64MiB'", "store.reserve = \"64MiB\"", &["store.max_bytes (64MiB)"]),
    ];

    #[test]
    fn what_keeps_something_from_ever_happening_is_told_once_with_its_key() {
        for (text, key, names) in SILENT {
            let told = told(text);
            let [line] = &told[..] else {
                panic!("{text}: {told:?}")
            };
            assert!(line.starts_with(key), "{text}: {line}");
            for name in *names {
                assert!(line.contains(name), "{text}: {line}");
            }
        }
    }

    #[test]
    fn what_is_off_contradicts_nothing() {
        for text in [
            "profile = 'cordon'\n[drain]\nenabled = true\n[remediation]\nenabled = true",
            "profile = 'cordon'\n[remediation]\nladder = ['RESTART_BM', 'COMPONENT_RESET']",
            "[ingest]\nlisten = ''\nplaintext_listen = '127.0.0.1:1'",
            "profile = 'cordon'\n[drain]\nimmediate_deadline = '1m'",
            "profile = 'cordon'\n[remediation]\nattempts_window = '1m'",
            "profile = 'remediate'\n[drain]\nenabled = false\n[remediation]\nwithout_drain = true",
        ] {
            assert!(told(text).is_empty(), "{text}: {:?}", told(text));
        }
    }
}
