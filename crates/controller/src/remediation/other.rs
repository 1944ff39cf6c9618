//! Another fault-remediation in the cluster: whether one runs, and what follows.

use tracing::{error, info};

use super::work::Module;

impl Module {
    /// Looks again and again. When one appears or goes, every node that is out is decided about anew.
    pub(super) async fn watch_reference(&self) {
        let kube = &self.context.kube;
        self.reference
            .watch(kube, |what| self.tell_other(what))
            .await;
    }

    fn tell_other(&self, what: Option<String>) {
        let runs = i64::from(what.is_some());
        self.context.metrics.remediation.other.set(runs);
        match what {
            None => info!("no other fault-remediation runs in the cluster"),
            Some(what) => error!(
                code = "other_remediation",
                what,
                "another fault-remediation runs in the cluster: no repair is ordered by us while it \
                 does, since both would order it. Remove it, or scale it to 0 replicas"
            ),
        }
        self.wake_all();
    }
}
