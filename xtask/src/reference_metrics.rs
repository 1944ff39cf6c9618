//! What became of the reference's metrics, for the parts that exist here.
//!
//! `data/reference-metrics.csv` holds one row a metric of the reference's components that this
//! version replaces: `same` (name, type and labels), `ours NAME` (another name, because the thing
//! counted is another), or `none` with the reason.

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The reference's component.
    pub(crate) component: &'static str,
    /// Name.
    pub(crate) metric: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "compared in the tests"))]
    kind: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "compared in the tests"))]
    labels: &'static str,
    /// `same`, `ours NAME` or `none`.
    pub(crate) answer: &'static str,
    /// Why, or what is to be known.
    pub(crate) note: &'static str,
}

/// A metric of ours.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) labels: Vec<&'static str>,
    pub(crate) help: &'static str,
}

static CSV: &str = include_str!("../data/reference-metrics.csv");

/// All rows, in the order of their components.
pub(crate) fn rows() -> Vec<Row> {
    let row = |line: &'static str| {
        let mut cells = line.splitn(6, ',');
        Some(Row {
            component: cells.next()?,
            metric: cells.next()?,
            kind: cells.next()?,
            labels: cells.next()?,
            answer: cells.next()?,
            note: cells.next()?,
        })
    };
    CSV.lines().skip(1).filter_map(row).collect()
}

/// What the controller serves.
pub(crate) fn controller() -> Vec<Metric> {
    let metrics = telemetry::metrics::ControllerMetrics::new();
    let described = metrics.described().iter();
    described
        .map(|metric| Metric {
            name: metric.name.clone(),
            kind: metric.kind.clone(),
            labels: metric.labels.to_vec(),
            help: metric.help,
        })
        .collect()
}

/// What the agent serves.
pub(crate) fn agent() -> Vec<Metric> {
    let plain = agent::admin::METRICS.map(|m| (m.name, m.kind, &[][..], m.help));
    let all = plain.into_iter().chain(agent::admin::LABELLED);
    all.map(|(name, kind, labels, help)| Metric {
        name: name.to_owned(),
        kind: kind.to_owned(),
        labels: labels.to_vec(),
        help,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ours() -> Vec<Metric> {
        controller().into_iter().chain(agent()).collect()
    }

    /// Rows of the reference's list for the components that this version replaces, counted there.
    #[test]
    fn every_metric_of_the_replaced_components_has_its_row() {
        let count = |component: &str| {
            let rows = rows().into_iter();
            rows.filter(|row| row.component == component).count()
        };
        let all = [
            ("commons", 1),
            ("commons/healthpub", 3),
            ("fault-quarantine", 23),
            ("fault-remediation", 9),
            ("janitor", 11),
            ("node-drainer", 12),
            ("platform-connectors", 18),
            ("syslog-health-monitor", 8),
        ];
        for (component, want) in all {
            assert_eq!(count(component), want, "{component}");
        }
        assert_eq!(rows().len(), all.iter().map(|(_, n)| n).sum::<usize>());
        assert_eq!(rows().len(), CSV.lines().count() - 1);
        let names: BTreeSet<&str> = rows().iter().map(|row| row.metric).collect();
        assert_eq!(names.len(), rows().len(), "each once");
    }

    #[test]
    fn the_same_name_has_the_same_type_and_labels_and_every_other_row_its_reason() {
        let ours = ours();
        let find = |name: &str| ours.iter().find(|metric| metric.name == name);
        for row in rows() {
            match row.answer.split_once(' ') {
                None if row.answer == "same" => {
                    let metric = find(row.metric).unwrap_or_else(|| panic!("{row:?}"));
                    let mut labels: Vec<&str> = row.labels.split(';').collect();
                    labels.retain(|label| !label.is_empty());
                    let same: BTreeSet<&str> = metric.labels.iter().copied().collect();
                    assert_eq!(same, labels.into_iter().collect(), "{row:?}");
                    assert_eq!(metric.kind, row.kind, "{row:?}");
                }
                Some(("ours", name)) => {
                    assert!(find(name).is_some(), "{row:?}");
                    assert!(
                        find(row.metric).is_none() && !row.note.is_empty(),
                        "{row:?}"
                    );
                }
                None | Some(_) => {
                    assert_eq!(row.answer, "none");
                    assert!(
                        find(row.metric).is_none() && !row.note.is_empty(),
                        "{row:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_name_that_is_not_the_references_is_recognisably_ours() {
        let same: Vec<&str> = rows()
            .iter()
            .filter(|row| row.answer == "same")
            .map(|row| row.metric)
            .collect();
        for metric in ours() {
            assert!(
                metric.name.starts_with("warden_") || same.contains(&metric.name.as_str()),
                "{metric:?}"
            );
        }
    }
}
