//! `docs/weak-points.md` names each of the reference's weak points, and tests that exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;

const PAGE: &str = "docs/weak-points.md";
/// Weak points of the reference's drain, remediation and log collection.
const COUNT: u16 = 70;
/// A name in backticks with as many underscores or more is that of a test.
const WORDS: usize = 4;

/// What the page leaves out, and tests that it names and that are not there.
pub(crate) fn faults(root: &Path) -> anyhow::Result<Vec<String>> {
    let page = root.join(PAGE);
    let text =
        std::fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    Ok(compare(&text, &crate::rows::all_test_names(root)?))
}

fn compare(text: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut left: BTreeSet<u16> = (1..=COUNT).collect();
    let mut faults = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [numbers, _, _, proof] = cells[..] else {
            continue;
        };
        let numbers = numbers.split(',').filter_map(|n| n.trim().parse().ok());
        let here: BTreeSet<u16> = numbers.collect();
        left.retain(|number| !here.contains(number));
        let named = proof.split('`').skip(1).step_by(2);
        for name in named.filter(|name| name.matches('_').count() >= WORDS) {
            if !tests.contains(name) {
                faults.push(format!("{PAGE} names the test {name}, which is not there"));
            }
        }
    }
    if !left.is_empty() {
        faults.push(format!("{PAGE} leaves out the weak points {left:?}"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_and_what_is_not_there_is_told() {
        let tests = BTreeSet::from(["a_test_that_is_there".to_owned()]);
        let all: Vec<String> = (2..=COUNT).map(|n| n.to_string()).collect();
        let page = format!(
            "| # | there | here | proof |\n|---|---|---|---|\n\
             | {} | a | `b_c_d_e_f` | `a_test_that_is_there`, `an_index`, `one_that_is_not_there` |",
            all.join(", ")
        );
        assert_eq!(
            compare(&page, &tests),
            [
                "docs/weak-points.md names the test one_that_is_not_there, which is not there",
                "docs/weak-points.md leaves out the weak points {1}"
            ]
        );
    }
}
