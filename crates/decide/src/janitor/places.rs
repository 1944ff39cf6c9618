//! How many reboots run at a time.

use super::Place;

/// What may run beside a reboot that is about to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beside<'a> {
    /// The node that the controller runs on; empty where that is not known.
    pub own_node: &'a str,
    /// Nodes whose reboots are under way, or about to be begun: one for each.
    pub under_way: &'a [&'a str],
    /// So many may run at a time.
    pub max_parallel: usize,
}

/// Whether a reboot of `node` may be begun: never of the node that the controller runs on, which would not see
/// its end; and beside one of that node none, for then the controller has moved there since.
pub fn place(node: &str, beside: Beside<'_>) -> Place {
    let is_own = |node: &str| !beside.own_node.is_empty() && node == beside.own_node;
    let under_way = beside.under_way;
    if is_own(node) {
        return Place::ControllerHere;
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
    fn our_own_node_waits_until_we_run_elsewhere_and_nothing_runs_beside_it() {
        let place = |node, under_way: &[&str], max_parallel| {
            let beside = Beside {
                own_node: "own",
                under_way,
                max_parallel,
            };
            place(node, beside)
        };
        assert_eq!(place("b", &["a"], 2), Place::Free);
        assert_eq!(place("b", &["a"], 1), Place::Full);
        assert_eq!(place("own", &[], 2), Place::ControllerHere);
        assert_eq!(place("own", &["a"], 2), Place::ControllerHere);
        assert_eq!(place("b", &["own"], 2), Place::Full);
    }
}
