//! Kubernetes' label selectors (`matchLabels`, `matchExpressions`), as the reference's exclusions
//! are written.

/// A selector: all of its requirements hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector(pub Vec<Requirement>);

/// What is asked of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// What is asked.
    pub operator: Operator,
}

/// What is asked of a label's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// It is one of these.
    In(Vec<String>),
    /// It is none of these, or there is no such label.
    NotIn(Vec<String>),
    /// There is such a label.
    Exists,
    /// There is no such label.
    DoesNotExist,
}

impl Selector {
    /// Whether it selects what has these labels.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|wanted| {
            let value = label(&wanted.key);
            let is_in = |values: &[String]| value.is_some_and(|v| values.iter().any(|w| w == v));
            match &wanted.operator {
                Operator::In(values) => is_in(values),
                Operator::NotIn(values) => !is_in(values),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_means_what_kubernetes_means() {
        let label = |key: &str| (key == "pool").then_some("gold");
        let values = |v: &str| vec![v.to_owned()];
        let table = [
            ("pool", Operator::In(values("gold")), true),
            ("pool", Operator::In(values("tin")), false),
            ("none", Operator::In(values("gold")), false),
            ("pool", Operator::NotIn(values("gold")), false),
            ("pool", Operator::NotIn(values("tin")), true),
            ("none", Operator::NotIn(values("gold")), true),
            ("pool", Operator::Exists, true),
            ("none", Operator::Exists, false),
            ("pool", Operator::DoesNotExist, false),
            ("none", Operator::DoesNotExist, true),
        ];
        for (key, operator, want) in table {
            let key = key.to_owned();
            let selector = Selector(vec![Requirement { key, operator }]);
            assert_eq!(selector.matches(label), want, "{selector:?}");
        }
        let both = |second| {
            Selector(
                [("pool", Operator::Exists), ("none", second)]
                    .map(|(key, operator)| Requirement {
                        key: key.to_owned(),
                        operator,
                    })
                    .into(),
            )
        };
        assert!(both(Operator::DoesNotExist).matches(label));
        assert!(!both(Operator::Exists).matches(label), "all must hold");
    }
}
