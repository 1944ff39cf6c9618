//! What every module gets.

use std::sync::Arc;

use event_store::EventStore;
use telemetry::{ControllerMetrics, Readiness};

use crate::config::Config;
use crate::file::ConfigFile;
use crate::kubernetes::Kube;
use crate::nodes::NodeCache;
use crate::orders::Orders;
use crate::pods::Pods;
use crate::reboots::Reboots;
use crate::refusals::Refusals;
use crate::reports::Reports;
use crate::stages::Stages;
use crate::stop::Stop;
use crate::workers::WakeAll;

/// What every module gets. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    /// The configuration in effect.
    pub config: Arc<Config>,
    /// The file that it was read from.
    pub file: ConfigFile,
    /// Events, faults, incidents, transitions.
    pub store: EventStore,
    /// The way to the API server.
    pub kube: Kube,
    /// The nodes of the cluster.
    pub nodes: NodeCache,
    /// The pods of nodes that are to be empty.
    pub pods: Pods,
    /// The orders to reboot nodes.
    pub reboots: Reboots,
    /// Orders of repairs that are on their way.
    pub orders: Orders,
    /// What drain and remediation saw last.
    pub stages: Stages,
    /// What the agents said about themselves.
    pub reports: Reports,
    /// Writes of nodes that the API server refuses at the moment.
    pub refusals: Refusals,
    /// Wakes every module's work of a node: a module adds its own workers before it starts.
    pub wakes: WakeAll,
    /// Numbers.
    pub metrics: Arc<ControllerMetrics>,
    /// Readiness of the process's parts.
    pub readiness: Readiness,
    /// The order to stop.
    pub stop: Stop,
    /// Number of the leadership under which this process writes.
    pub fencing: u64,
    /// Namespace of the controller's own objects.
    pub namespace: String,
}
