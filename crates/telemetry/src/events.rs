//! What is worth a log line with a number: one struct an event.
//!
//! Fields that appear in several are named the same everywhere: `node`, `incident`, `pool`,
//! `sender`, `code`.

use tracing::{error, info, warn};

use crate::metrics::{
    ActionLabel, BoundLabel, ControllerMetrics, ErrorLabel, NodeLabel, PoolLabel, RefusalLabel,
    StateLabel, TaintLabel,
};

fn node_label(node: &str) -> NodeLabel {
    NodeLabel { node: node.into() }
}

/// A taint in an event: (key, effect).
pub type TaintRef<'a> = (&'a str, &'a str);

fn taint_label((key, effect): TaintRef<'_>) -> TaintLabel {
    TaintLabel {
        taint_key: key.into(),
        taint_effect: effect.into(),
    }
}

/// A node carries our marks now.
#[derive(Debug)]
pub struct NodeQuarantined<'a> {
    /// Node.
    pub node: &'a str,
    /// Incident.
    pub incident: &'a str,
    /// Rule sets that matched, parted by commas.
    pub rules: &'a str,
    /// Whether we cordoned it with this write.
    pub cordoned: bool,
    /// Taints put on with this write.
    pub taints: &'a [TaintRef<'a>],
    /// Seconds since the event's generation, if it gave a time.
    pub after_seconds: Option<f64>,
}

impl NodeQuarantined<'_> {
    /// Log line and numbers.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        let label = node_label(self.node);
        metrics.nodes_quarantined.get_or_create(&label).inc();
        set_quarantined(metrics, self.node, true);
        if self.cordoned {
            metrics.cordons_applied.inc();
        }
        for taint in self.taints {
            metrics
                .taints_applied
                .get_or_create(&taint_label(*taint))
                .inc();
        }
        if let Some(seconds) = self.after_seconds {
            metrics.node_quarantine_seconds.observe(seconds);
        }
        info!(
            node = self.node,
            incident = self.incident,
            rules = self.rules,
            cordoned = self.cordoned,
            taints = self.taints.len(),
            after_seconds = self.after_seconds,
            "node taken out of service"
        );
    }
}

/// The marks of a node that is out follow its faults.
#[derive(Debug)]
pub struct MarksFollowed<'a> {
    /// Node.
    pub node: &'a str,
    /// Incident.
    pub incident: &'a str,
    /// Static code of the reason.
    pub reason: &'static str,
    /// Whether a cordon of ours comes.
    pub cordoned: bool,
    /// Whether our cordon goes.
    pub uncordoned: bool,
    /// Taints that come.
    pub taints_put: &'a [TaintRef<'a>],
    /// Taints that go.
    pub taints_taken: &'a [TaintRef<'a>],
}

impl MarksFollowed<'_> {
    /// Log line and numbers.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        if self.cordoned {
            metrics.cordons_applied.inc();
        }
        if self.uncordoned {
            metrics.cordons_removed.inc();
        }
        let series = [
            (&metrics.taints_applied, self.taints_put),
            (&metrics.taints_removed, self.taints_taken),
        ];
        for (counter, taints) in series {
            for taint in taints {
                counter.get_or_create(&taint_label(*taint)).inc();
            }
        }
        info!(
            node = self.node,
            incident = self.incident,
            reason = self.reason,
            cordoned = self.cordoned,
            uncordoned = self.uncordoned,
            taints_put = self.taints_put.len(),
            taints_taken = self.taints_taken.len(),
            "marks of a node that is out follow its faults"
        );
    }
}

/// A node carries none of our marks any more.
#[derive(Debug)]
pub struct NodeReleased<'a> {
    /// Node.
    pub node: &'a str,
    /// Incident.
    pub incident: &'a str,
    /// How the incident ended.
    pub reason: &'a str,
    /// Whether we uncordoned it with this write.
    pub uncordoned: bool,
    /// Taints taken off with this write.
    pub taints: &'a [TaintRef<'a>],
    /// Of each event that held the node: its recommended action, and seconds since its generation.
    pub remediated: &'a [(&'a str, f64)],
}

impl NodeReleased<'_> {
    /// Log line and numbers.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        let label = node_label(self.node);
        metrics.nodes_unquarantined.get_or_create(&label).inc();
        set_quarantined(metrics, self.node, false);
        if self.uncordoned {
            metrics.cordons_removed.inc();
        }
        for taint in self.taints {
            metrics
                .taints_removed
                .get_or_create(&taint_label(*taint))
                .inc();
        }
        for (action, seconds) in self.remediated {
            let label = ActionLabel {
                recommended_action: (*action).into(),
            };
            let histogram = metrics.node_remediation_seconds.get_or_create(&label);
            histogram.observe(*seconds);
        }
        match self.reason {
            "ManualUncordon" => {
                metrics
                    .nodes_manually_uncordoned
                    .get_or_create(&label)
                    .inc();
            }
            "ManualUntaint" => {
                metrics.nodes_manually_untainted.get_or_create(&label).inc();
            }
            _ => {}
        }
        info!(
            node = self.node,
            incident = self.incident,
            reason = self.reason,
            uncordoned = self.uncordoned,
            taints = self.taints.len(),
            "node given back"
        );
    }
}

/// Sets whether a node is out by us; called at start too, so that the alert on it does not go
/// silent with a restart.
pub fn set_quarantined(metrics: &ControllerMetrics, node: &str, is_out: bool) {
    metrics
        .current_quarantined_nodes
        .get_or_create(&node_label(node))
        .set(i64::from(is_out));
}

/// A node should be out and is not, for a reason that ends.
#[derive(Debug)]
pub struct NodeWithheld<'a> {
    /// Node.
    pub node: &'a str,
    /// Incident.
    pub incident: &'a str,
    /// Pool.
    pub pool: &'a str,
    /// `breaker`, `first_action`, `pace` or `other_quarantine`.
    pub reason: &'a str,
}

impl NodeWithheld<'_> {
    /// Log line; how many are withheld is a level that the module sets itself.
    pub fn emit(&self) {
        warn!(
            node = self.node,
            incident = self.incident,
            pool = self.pool,
            reason = self.reason,
            "node withheld: it should be out of service and is not"
        );
    }
}

/// A pool's breaker tripped.
#[derive(Debug)]
pub struct BreakerTripped<'a> {
    /// Pool.
    pub pool: &'a str,
    /// `level` or `rate`.
    pub bound: &'a str,
    /// Nodes that count against the bound.
    pub count: usize,
    /// The bound, in nodes.
    pub limit: usize,
    /// Rule with the largest share.
    pub rule: &'a str,
    /// Check with the largest share.
    pub check: &'a str,
}

impl BreakerTripped<'_> {
    /// Log line and numbers.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        let bound = BoundLabel {
            pool: self.pool.into(),
            bound: self.bound.into(),
        };
        metrics.breaker_trips.get_or_create(&bound).inc();
        set_breaker(metrics, self.pool, true);
        error!(
            pool = self.pool,
            bound = self.bound,
            count = self.count,
            limit = self.limit,
            rule = self.rule,
            check = self.check,
            "breaker tripped: no further node of the pool is taken out until `warden breaker \
             reset`; recoveries go on"
        );
    }
}

/// A pool's breaker is closed again.
#[derive(Debug)]
pub struct BreakerReset<'a> {
    /// Pool.
    pub pool: &'a str,
    /// Who, or `auto_resume`.
    pub actor: &'a str,
    /// Whether withheld nodes were dropped.
    pub dropped_withheld: bool,
}

impl BreakerReset<'_> {
    /// Log line and numbers.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        set_breaker(metrics, self.pool, false);
        info!(
            pool = self.pool,
            actor = self.actor,
            dropped_withheld = self.dropped_withheld,
            "breaker reset"
        );
    }
}

/// Sets a pool's part of the breaker metrics. The reference has one series, of the present state.
pub fn set_breaker(metrics: &ControllerMetrics, pool: &str, tripped: bool) {
    let label = PoolLabel { pool: pool.into() };
    metrics
        .breaker_pool_tripped
        .get_or_create(&label)
        .set(i64::from(tripped));
}

/// Sets the reference's state series from whether any pool is tripped; called with the whole view,
/// also at start, so that the alert on it does not go silent with a restart.
pub fn set_breaker_state(metrics: &ControllerMetrics, any_tripped: bool) {
    let (present, other) = if any_tripped {
        ("TRIPPED", "CLOSED")
    } else {
        ("CLOSED", "TRIPPED")
    };
    let label = |state: &str| StateLabel {
        state: state.into(),
    };
    metrics.breaker_state.remove(&label(other));
    metrics.breaker_state.get_or_create(&label(present)).set(1);
}

/// A call was refused, or in audit mode would have been.
#[derive(Debug)]
pub struct EventRefused<'a> {
    /// The sender as far as it is known.
    pub sender: &'a str,
    /// Static code.
    pub code: &'static str,
    /// Why, for people.
    pub why: &'a str,
    /// Whether it was let pass (audit).
    pub let_pass: bool,
}

impl EventRefused<'_> {
    /// Log line and number.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        self.count(metrics);
        warn!(
            sender = self.sender,
            code = self.code,
            mode = self.mode(),
            why = self.why,
            "call not allowed"
        );
    }

    /// The number alone, where the same line was logged a moment ago.
    pub fn count(&self, metrics: &ControllerMetrics) {
        let label = RefusalLabel {
            code: self.code.into(),
            mode: self.mode().into(),
        };
        metrics.ingest_refused.get_or_create(&label).inc();
    }

    fn mode(&self) -> &'static str {
        if self.let_pass { "audit" } else { "refused" }
    }
}

/// A write about a node failed.
#[derive(Debug)]
pub struct NodeWriteFailed<'a> {
    /// Node.
    pub node: &'a str,
    /// Static code.
    pub code: &'static str,
    /// Why, for people.
    pub why: &'a str,
}

impl NodeWriteFailed<'_> {
    /// Log line and number.
    pub fn emit(&self, metrics: &ControllerMetrics) {
        let label = ErrorLabel {
            error_type: self.code.into(),
        };
        metrics.quarantine_errors.get_or_create(&label).inc();
        warn!(
            node = self.node,
            code = self.code,
            why = self.why,
            "node write failed; it is decided anew"
        );
    }
}

/// An agent has not reported for three intervals.
#[derive(Debug)]
pub struct AgentSilent<'a> {
    /// Node.
    pub node: &'a str,
    /// Seconds since its last report.
    pub silent_seconds: i64,
}

impl AgentSilent<'_> {
    /// Log line; how many are silent is a level that the module sets itself.
    pub fn emit(&self) {
        warn!(
            node = self.node,
            silent_seconds = self.silent_seconds,
            "agent silent: its node's faults are not known"
        );
    }
}

/// The word of a node's agent can't be taken for the node's: several speak, or it is on another
/// machine.
#[derive(Debug)]
pub struct AgentDoubtful<'a> {
    /// Node.
    pub node: &'a str,
    /// The check under which it is stored.
    pub check: &'a str,
    /// Who speaks, from where, and what to do.
    pub why: &'a str,
}

impl AgentDoubtful<'_> {
    /// Log line; how many there are is a level that the module sets itself.
    pub fn emit(&self) {
        error!(
            node = self.node,
            check = self.check,
            why = self.why,
            "the agent of a node can't be taken at its word"
        );
    }
}

/// Events of a node opened no fault, because as many are open as may be.
#[derive(Debug)]
pub struct FaultsUnopened<'a> {
    /// Node.
    pub node: &'a str,
    /// Who said the last of them.
    pub agent: &'a str,
    /// Under which check.
    pub check: &'a str,
    /// How many.
    pub events: u64,
}

impl FaultsUnopened<'_> {
    /// Log line; how many nodes there are is a level that the module sets itself.
    pub fn emit(&self) {
        error!(
            node = self.node,
            agent = self.agent,
            check = self.check,
            events = self.events,
            "a node has as many open faults as it may have: events are stored and open none"
        );
    }
}

/// Many nodes of a pool fell silent or NotReady together: a fault of the pool (network, power,
/// API server), not of the nodes.
#[derive(Debug)]
pub struct PoolSilent<'a> {
    /// Pool.
    pub pool: &'a str,
    /// How many nodes.
    pub silent: usize,
    /// Nodes of the pool.
    pub nodes: usize,
}

impl PoolSilent<'_> {
    /// Log line; whether a pool is silent is a level that the module sets itself.
    pub fn emit(&self) {
        error!(
            pool = self.pool,
            silent = self.silent,
            nodes = self.nodes,
            "many nodes of the pool fell silent together; no node is acted on for it. Look at \
             what they share: network, power, a rollout of the agent"
        );
    }
}

/// Nodes that should have an agent never had one.
#[derive(Debug)]
pub struct AgentsMissing {
    /// How many nodes.
    pub nodes: usize,
}

impl AgentsMissing {
    /// Log line; how many are missing is a level that the module sets itself.
    pub fn emit(&self) {
        error!(
            nodes = self.nodes,
            "no agent ever reported from these nodes: their faults are not known. Check that the \
             DaemonSet tolerates their taints; reports.expect_everywhere = false if that is meant"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::tests::logged;

    #[test]
    fn a_quarantined_node_is_logged_and_counted_together() {
        let metrics = ControllerMetrics::new();
        let text = logged(|| {
            NodeQuarantined {
                node: "gpu-1",
                incident: "01ARZ3NDEKTSV4RRFFQ69G5FAV",
                rules: "gpu-fatal",
                cordoned: true,
                taints: &[("gpu", "NoSchedule")],
                after_seconds: Some(0.02),
            }
            .emit(&metrics);
        });
        assert!(text.contains(r#""node":"gpu-1""#), "{text}");
        assert!(text.contains("taken out of service"), "{text}");
        let page = metrics.encode();
        for line in [
            r#"nodes_quarantined_total{node="gpu-1"} 1"#,
            r#"current_quarantined_nodes{node="gpu-1"} 1"#,
            r#"taints_applied_total{taint_key="gpu",taint_effect="NoSchedule"} 1"#,
            "cordons_applied_total 1",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn a_persons_uncordon_is_counted_as_such_and_the_node_is_no_longer_out() {
        let metrics = ControllerMetrics::new();
        let released = NodeReleased {
            node: "gpu-1",
            incident: "i",
            reason: "ManualUncordon",
            uncordoned: false,
            taints: &[],
            remediated: &[("RESTART_BM", 12.0)],
        };
        let text = logged(|| released.emit(&metrics));
        assert!(text.contains("given back"), "{text}");
        let page = metrics.encode();
        assert!(page.contains(r#"nodes_manually_uncordoned_total{node="gpu-1"} 1"#));
        assert!(page.contains(r#"current_quarantined_nodes{node="gpu-1"} 0"#));
        assert!(page.contains("cordons_removed_total 0"), "{page}");
        let sum = r#"remediation_duration_seconds_sum{recommended_action="RESTART_BM"} 12"#;
        assert!(page.contains(sum), "{page}");
    }

    #[test]
    fn only_the_present_state_of_the_breaker_has_a_series() {
        let metrics = ControllerMetrics::new();
        set_breaker_state(&metrics, false);
        assert!(
            metrics
                .encode()
                .contains(r#"breaker_state{state="CLOSED"} 1"#)
        );
        let text = logged(|| {
            BreakerTripped {
                pool: "gpu",
                bound: "rate",
                count: 4,
                limit: 4,
                rule: "r",
                check: "SysLogsXIDError",
            }
            .emit(&metrics);
        });
        set_breaker_state(&metrics, true);
        assert!(text.contains(r#""level":"ERROR""#), "{text}");
        let page = metrics.encode();
        assert!(page.contains(r#"breaker_state{state="TRIPPED"} 1"#));
        assert!(!page.contains(r#"state="CLOSED""#), "{page}");
        assert!(page.contains(r#"warden_breaker_tripped{pool="gpu"} 1"#));
    }

    #[test]
    fn a_refusal_says_whether_it_was_let_pass() {
        let metrics = ControllerMetrics::new();
        let mut refused = EventRefused {
            sender: "agent:gpu-1",
            code: "foreign_node",
            why: "event 0 names node gpu-2",
            let_pass: false,
        };
        let text = logged(|| refused.emit(&metrics));
        assert!(text.contains(r#""code":"foreign_node""#), "{text}");
        refused.let_pass = true;
        logged(|| refused.emit(&metrics));
        let page = metrics.encode();
        assert!(
            page.contains(r#"warden_ingest_refused_total{code="foreign_node",mode="refused"} 1"#)
        );
        assert!(
            page.contains(r#"warden_ingest_refused_total{code="foreign_node",mode="audit"} 1"#)
        );
    }
}
