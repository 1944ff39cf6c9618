//! What a node costs in the cache under a configuration.
//!
//! A typical node is decoded as the watch decodes it, and what is kept of it is counted, with the
//! allocator's rounding. What all nodes share (keys, and values that are the same everywhere) is not
//! a node's. A test compares the number with the memory that thousands of nodes take.

use std::collections::BTreeSet;
use std::mem::size_of;
use std::sync::Arc;

use health_event::NodeName;
use serde_json::Value;

use super::decode::{Decoder, Line};
use super::{Keys, NodeCondition, NodeFacts, NodeTaint, Wanted, typical};

/// What is kept of each node, and how much memory that takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCost {
    /// Bytes of a typical node.
    pub bytes: usize,
    /// How many labels are kept by name; none: all that a node has.
    pub labels: Option<usize>,
    /// The same of annotations.
    pub annotations: Option<usize>,
    /// Other fields that rules read, as `status.nodeInfo.kernelVersion`; as a rule none.
    pub fields: Vec<String>,
}

impl NodeCost {
    /// As `--check-config` prints it: `bytes_per_node`, `typical_node`, and what is kept of
    /// `labels`, `annotations` and other `fields`.
    pub fn table(&self) -> toml::Table {
        let kept = |count: Option<usize>| match count {
            Some(count) => format!("{count} by name"),
            None => "all".to_owned(),
        };
        let fields: Vec<toml::Value> = self.fields.iter().map(|f| f.as_str().into()).collect();
        toml::Table::from_iter([
            ("bytes_per_node".to_owned(), bytes_value(self.bytes)),
            ("typical_node".to_owned(), typical::WORDS.into()),
            ("labels".to_owned(), kept(self.labels).into()),
            ("annotations".to_owned(), kept(self.annotations).into()),
            ("fields".to_owned(), fields.into()),
        ])
    }

    /// Of a typical node, where this is kept of it.
    pub fn of(wanted: &Wanted) -> Self {
        let by_name = |keys: &Keys| match keys {
            Keys::All => None,
            Keys::Only(keys) => Some(keys.len()),
        };
        let mut decoder = Decoder::new(wanted.clone());
        let template = typical::template();
        let mut node = |number| match decoder.line(typical::line(&template, number).as_bytes()) {
            Ok((Line::Node(node), _)) => Some(node),
            Ok(_) | Err(_) => None,
        };
        // The texts that the second has too are those of all nodes.
        let bytes = node(1).zip(node(2)).map_or(0, |(one, two)| {
            let shared: BTreeSet<&str> = texts(&one).map(|text| &**text).collect();
            let list = if one.foreign_conditions == two.foreign_conditions {
                0
            } else {
                arc(two.foreign_conditions.len() * size_of::<Arc<str>>())
            };
            own(&two) + list + interned(&two, &shared)
        });
        Self {
            bytes,
            labels: by_name(&wanted.labels),
            annotations: by_name(&wanted.annotations),
            fields: wanted.paths.iter().map(|path| path.join(".")).collect(),
        }
    }
}

fn bytes_value(bytes: usize) -> toml::Value {
    i64::try_from(bytes).unwrap_or(i64::MAX).into()
}

/// Texts that the decoder keeps once.
fn texts(node: &NodeFacts) -> impl Iterator<Item = &Arc<str>> {
    let labels = node.labels.iter().flat_map(|(key, value)| [key, value]);
    let annotations = node.annotations.iter().map(|(key, _)| key);
    let taints = node.taints.iter().flatten();
    let taints = taints.flat_map(|taint| [&taint.key, &taint.value, &taint.effect]);
    let conditions = node.conditions.iter();
    let conditions = conditions.flat_map(|c| [&c.kind, &c.reason, &c.message]);
    labels
        .chain(annotations)
        .chain(taints)
        .chain(conditions)
        .chain(node.foreign_conditions.iter())
}

fn interned(node: &NodeFacts, shared: &BTreeSet<&str>) -> usize {
    let own: BTreeSet<&str> = texts(node).map(|text| &**text).collect();
    let own = own.difference(shared);
    own.map(|text| arc(text.len()) + slot(size_of::<Arc<str>>()))
        .sum()
}

/// What is a node's own, whatever it says.
fn own(node: &NodeFacts) -> usize {
    // All by name: a new field does not compile until it is counted.
    let NodeFacts {
        name,
        uid,
        created_at: _,
        resource_version: _,
        has_labels: _,
        has_annotations: _,
        labels,
        annotations,
        unschedulable: _,
        cordon_owner: _,
        taints,
        provider_id,
        boot_id,
        system_uuid,
        ready: _,
        ready_since: _,
        conditions,
        foreign_conditions: _,
        extra,
    } = node;
    let pairs = size_of::<(Arc<str>, Arc<str>)>();
    let values = annotations.iter().map(|(_, value)| arc(value.len()));
    let taints = taints.as_deref().unwrap_or_default();
    let times = taints.iter().filter_map(|taint| taint.time_added.as_ref());
    let fields = extra.iter().map(|(path, value)| {
        let names = path.iter().map(|name| allocated(name.len()));
        allocated(path.len() * size_of::<String>()) + names.sum::<usize>() + tree(value)
    });
    slot(size_of::<(NodeName, Arc<NodeFacts>)>())
        + arc(size_of::<NodeFacts>())
        + arc(name.as_str().len())
        + arc(uid.len())
        + allocated(labels.len() * pairs)
        + allocated(annotations.len() * pairs)
        + values.sum::<usize>()
        + allocated(size_of_val::<[NodeTaint]>(taints))
        + times.map(|time| allocated(time.len())).sum::<usize>()
        + allocated(provider_id.len())
        + allocated(boot_id.len())
        + allocated(system_uuid.len())
        + allocated(size_of_val::<[NodeCondition]>(conditions))
        + allocated(size_of_val::<[(Vec<String>, Value)]>(extra))
        + fields.sum::<usize>()
}

/// What hangs on a JSON value.
fn tree(value: &Value) -> usize {
    /// Entries that a node of the standard library's B-tree takes, and how many it has as a rule
    /// where they came in order.
    const ENTRIES: usize = 11;
    const USUAL: usize = 7;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => allocated(text.len()),
        Value::Array(items) => {
            allocated(items.len() * size_of::<Value>()) + items.iter().map(tree).sum::<usize>()
        }
        Value::Object(map) => {
            let nodes = match map.len() {
                0 => 0,
                1..=ENTRIES => 1,
                more => more.div_ceil(USUAL) + 1,
            };
            let entry = size_of::<String>() + size_of::<Value>();
            let entries = map
                .iter()
                .map(|(key, value)| allocated(key.len()) + tree(value));
            nodes * allocated(ENTRIES * entry + 2 * size_of::<usize>()) + entries.sum::<usize>()
        }
    }
}

/// A text or struct behind an `Arc`, with its two counts.
fn arc(bytes: usize) -> usize {
    allocated(bytes + 2 * size_of::<usize>())
}

/// A place in a hash table, which is between 7/16 and 7/8 full, with its control byte.
fn slot(bytes: usize) -> usize {
    (bytes + 1) * 3 / 2
}

/// What jemalloc gives for so many bytes: multiples of 16, above 128 four sizes a doubling.
fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=128 => bytes.next_multiple_of(16),
        more => more.next_multiple_of(more.next_power_of_two() / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::nodes::{NodeCache, Pool};
    use crate::quarantine;

    /// How many are measured with the shipped rules; fewer with others.
    const NODES: usize = 10_000;
    /// Which one to measure, in a process of its own.
    const ALONE: &str = "WARDEN_TEST_MEASURES_COST";

    const SHIPPED: &str = r#"annotations = "12 by name"
bytes_per_node = 677
fields = []
labels = "13 by name"
typical_node = "63 labels, 7 annotations, 22 conditions, 50 images"
"#;
    const LABELS: &str = r#"annotations = "12 by name"
bytes_per_node = 2807
fields = []
labels = "all"
typical_node = "63 labels, 7 annotations, 22 conditions, 50 images"
"#;

    fn rule(expression: &str) -> String {
        format!(
            "[[quarantine.rule-sets]]\nname = 'mine'\nmatch.all = [\n\
             {{ kind = 'HealthEvent', expression = 'event.isFatal' }},\n\
             {{ kind = 'Node', expression = '''{expression}''' }}]\n"
        )
    }

    /// With the shipped rules; one that looks among all labels; one that reads a field; all of it.
    fn configurations() -> [String; 4] {
        [
            String::new(),
            rule("node.metadata.labels.exists(key, key.startsWith('rack.'))"),
            rule("node.status.nodeInfo.kernelVersion.startsWith('6.')"),
            rule("has(node.status)"),
        ]
    }

    fn wanted(configuration: &str) -> Wanted {
        let config = Config::parse(configuration).unwrap();
        let rules = quarantine::rule_sets(&config.quarantine).unwrap();
        quarantine::wanted(&config.quarantine, &rules)
    }

    #[test]
    fn each_field_that_rules_read_costs_what_it_holds() {
        let [shipped, labels, field, _] = configurations().map(|text| NodeCost::of(&wanted(&text)));
        assert!(shipped.bytes <= 1_024, "{shipped:?}");
        assert!(labels.bytes > shipped.bytes + 60 * 32, "{labels:?}");
        assert!(labels.bytes <= 3 * 1_024, "{labels:?}");
        assert_eq!(
            (labels.labels, labels.annotations),
            (None, shipped.annotations)
        );
        assert!(shipped.labels > Some(0) && shipped.fields.is_empty());
        assert_eq!(field.fields, ["status.nodeInfo.kernelVersion"]);
        assert!(field.bytes > shipped.bytes + 100, "{field:?}");
        assert!(field.bytes < shipped.bytes + 400, "{field:?}");
    }

    #[test]
    fn what_is_told_is_as_it_was_read() {
        let [shipped, labels, ..] = configurations().map(|text| NodeCost::of(&wanted(&text)));
        assert_eq!(shipped.table().to_string(), SHIPPED);
        assert_eq!(labels.table().to_string(), LABELS);
    }

    #[test]
    fn sizes_are_those_of_the_allocator() {
        let table = [
            (0, 0),
            (1, 16),
            (16, 16),
            (17, 32),
            (128, 128),
            (129, 160),
            (257, 320),
        ];
        for (bytes, want) in table {
            assert_eq!(allocated(bytes), want, "{bytes}");
        }
    }

    /// The number that is told is within a fifth of what thousands of nodes take.
    #[test]
    fn nodes_take_the_memory_that_is_told() {
        if let Some(which) = std::env::var_os(ALONE) {
            measure(which.to_str().unwrap().parse().unwrap());
            return;
        }
        for which in 0..configurations().len() {
            let name = "nodes::cost::tests::nodes_take_the_memory_that_is_told";
            let run = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(ALONE, which.to_string())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(
                run.status.success() && said.contains("bytes a node"),
                "{said}"
            );
        }
    }

    fn measure(which: usize) {
        let wanted = wanted(&configurations()[which]);
        let told = NodeCost::of(&wanted).bytes;
        let nodes = match which {
            0 => NODES,
            _ if told > 10_000 => NODES / 20,
            _ => NODES / 5,
        };
        let template = typical::template();
        let mut decoder = Decoder::new(wanted);
        let cache = NodeCache::new(
            vec![Pool {
                name: "gpu".into(),
                label: "nvidia.com/gpu.present".into(),
                value: "true".into(),
            }],
            Wanted::ours(""),
        );
        let before = anonymous_bytes();
        for number in 0..nodes {
            let line = typical::line(&template, number);
            let (Line::Node(node), _) = decoder.line(line.as_bytes()).unwrap() else {
                panic!()
            };
            cache.put(node, false);
        }
        let used = anonymous_bytes().saturating_sub(before) / nodes;
        assert_eq!(cache.pool_size("gpu"), nodes);
        println!("{used} bytes a node, {told} told");
        assert!(
            used.abs_diff(told) * 5 <= told,
            "{used} bytes a node, {told} told"
        );
        // The design's numbers: with the shipped rules, and with all labels.
        let goals = [Some(1_024), Some(3 * 1_024), None, None];
        assert!(
            goals[which].is_none_or(|goal| used <= goal),
            "{used} bytes a node"
        );
    }

    fn anonymous_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
        let kibibytes = line.split_whitespace().nth(1).unwrap();
        kibibytes.parse::<usize>().unwrap() * 1024
    }
}
