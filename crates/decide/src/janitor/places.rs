//! How many reboots run at a time.

use super::Place;

/// What may run beside a reboot that is about to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beside<'a> {
    /// The node that the controller runs on; empty where that is not known.
    pub own_node: &'a str,
    /// Nodes whose reboots are under way, or about to be begun: one for each.
    pub under_way: &'a [&'a str],
    /// Whether a reboot of another node is not at its end.
    pub others_wait: bool,
    /// So many may run at a time.
    pub max_parallel: usize,
}

/// Whether a reboot of `node` may be begun; the controller's own node goes last, and alone.
pub fn place(node: &str, beside: Beside<'_>) -> Place {
    let is_own = |node: &str| !beside.own_node.is_empty() && node == beside.own_node;
    let under_way = beside.under_way;
    if is_own(node) && (beside.others_wait || !under_way.is_empty()) {
        return Place::OwnNodeLast;
    }
    let own_runs = under_way.iter().any(|node| is_own(node));
    if own_runs || under_way.len() >= beside.max_parallel {
        return Place::Full;
    }
    Place::Free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_node_goes_last_and_alone() {
        let place = |node, under_way: &[&str], others_wait, max_parallel| {
            let beside = Beside {
                own_node: "own",
                under_way,
                others_wait,
                max_parallel,
            };
            place(node, beside)
        };
        assert_eq!(place("b", &["a"], true, 2), Place::Free);
        assert_eq!(place("b", &["a"], true, 1), Place::Full);
        assert_eq!(place("own", &[], true, 2), Place::OwnNodeLast);
        assert_eq!(place("own", &["a"], false, 2), Place::OwnNodeLast);
        assert_eq!(place("own", &[], false, 2), Place::Free);
        assert_eq!(place("b", &["own"], false, 2), Place::Full);
    }
}
