//! `docs/weak-points.md` names each of the reference's weak points, with tests that exist or, in words that
//! are counted, why there is none.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;

const PAGE: &str = "docs/weak-points.md";
/// Weak points of the reference's drain, remediation and log collection.
const COUNT: u16 = 70;
/// A name in backticks with as many underscores or more is that of a test.
const WORDS: usize = 4;

/// What stands in the place of a proof, or of a part of one: `**open**: why`.
const WORDS_FOR_NONE: [&str; 3] = ["unproven", "open", "not yet"];

/// What the page says of the weak points, and what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WeakPoints {
    /// Rows that a test proves, in whole or in part.
    proven: usize,
    /// Rows that say each of [`WORDS_FOR_NONE`], of a part or of all.
    without: [usize; WORDS_FOR_NONE.len()],
    /// What the page leaves out, rows without a proof or a word for it, and tests that are not there.
    pub(crate) faults: Vec<String>,
}

impl std::fmt::Display for WeakPoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "weak points: {} rows with a test", self.proven)?;
        let words = WORDS_FOR_NONE.iter().zip(self.without);
        words
            .into_iter()
            .try_for_each(|(word, count)| write!(f, ", {count} {word}"))
    }
}

/// Reads the page.
pub(crate) fn read(root: &Path) -> anyhow::Result<WeakPoints> {
    let page = root.join(PAGE);
    let text =
        std::fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    Ok(compare(&text, &crate::rows::all_test_names(root)?))
}

fn compare(text: &str, tests: &BTreeSet<String>) -> WeakPoints {
    let mut left: BTreeSet<u16> = (1..=COUNT).collect();
    let mut faults = Vec::new();
    let (mut proven, mut without) = (0, [0; WORDS_FOR_NONE.len()]);
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [numbers, _, _, proof] = cells[..] else {
            continue;
        };
        let here = numbers.split(',').filter_map(|n| n.trim().parse().ok());
        let here: BTreeSet<u16> = here.collect();
        if here.is_empty() {
            continue;
        }
        left.retain(|number| !here.contains(number));
        let named = proof.split('`').skip(1).step_by(2);
        let named = named.filter(|name| name.matches('_').count() >= WORDS);
        let (there, missing): (Vec<&str>, Vec<&str>) =
            named.partition(|name| tests.contains(*name));
        proven += usize::from(!there.is_empty());
        faults.extend(
            missing
                .iter()
                .map(|name| format!("{PAGE} names the test {name}, which is not there")),
        );
        let mut says_why = false;
        for (word, count) in WORDS_FOR_NONE.iter().zip(&mut without) {
            match reason(proof, word) {
                Reason::None => {}
                Reason::Empty => faults.push(format!(
                    "{PAGE}, weak point {}: say why: **{word}**: WHY",
                    numbers.trim()
                )),
                Reason::Given => {
                    *count += 1;
                    says_why = true;
                }
            }
        }
        if there.is_empty() && missing.is_empty() && !says_why {
            faults.push(format!(
                "{PAGE}, weak point {}: name the test that proves it, or say **unproven**, **open** or \
                 **not yet**, with : and why",
                numbers.trim()
            ));
        }
    }
    if !left.is_empty() {
        faults.push(format!("{PAGE} leaves out the weak points {left:?}"));
    }
    WeakPoints {
        proven,
        without,
        faults,
    }
}

/// Whether a cell says why there is no proof.
enum Reason {
    /// It does not use the word.
    None,
    /// It does, and does not say why, or not in the form that is counted.
    Empty,
    /// It does.
    Given,
}

fn reason(proof: &str, word: &str) -> Reason {
    // Names of tests and of parts are quoted.
    let plain: String = proof.split('`').step_by(2).collect();
    if let Some((_, after)) = plain.split_once(&format!("**{word}**")) {
        let why = after.trim_start().strip_prefix(':').unwrap_or_default();
        let why = why.split("**").next().unwrap_or_default();
        return if why.chars().filter(|c| c.is_alphabetic()).count() >= WORDS {
            Reason::Given
        } else {
            Reason::Empty
        };
    }
    let mut words = plain.split(|c: char| !c.is_alphabetic() && c != ' ');
    if words.any(|part| part.trim() == word) {
        Reason::Empty
    } else {
        Reason::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_a_test_that_is_there_or_a_counted_word_with_its_reason() {
        let tests = BTreeSet::from(["a_test_that_is_there".to_owned()]);
        let of = |proof: &str| {
            let all: Vec<String> = (1..=COUNT).map(|n| n.to_string()).collect();
            compare(&format!("| {} | a | b | {proof} |", all.join(", ")), &tests)
        };
        for (proof, proven, without) in [
            ("`a_test_that_is_there`", 1, [0, 0, 0]),
            ("**unproven**: only measured", 0, [1, 0, 0]),
            ("**open**: nobody asked", 0, [0, 1, 0]),
            ("**not yet**: log collection", 0, [0, 0, 1]),
            (
                "`a_test_that_is_there`; of choice **open**: nobody asked",
                1,
                [0, 1, 0],
            ),
            ("`a_test_that_is_there`; *differences*", 1, [0, 0, 0]),
        ] {
            let found = of(proof);
            assert_eq!(found.faults, Vec::<String>::new(), "{proof}");
            assert_eq!((found.proven, found.without), (proven, without), "{proof}");
        }
        for proof in [
            "",
            "–",
            "differences",
            "**unproven**",
            "unproven",
            "open",
            "**open**:",
            "**open**: .",
            "**not yet**; log collection",
            "**unproven** (`an_index`)",
            "`too_short`",
            "`a_test_that_is_there`; **open**",
        ] {
            assert!(!of(proof).faults.is_empty(), "{proof}");
        }
        let said = of("**open**: nobody asked").to_string();
        assert_eq!(
            said,
            "weak points: 0 rows with a test, 0 unproven, 1 open, 0 not yet"
        );
    }

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
            compare(&page, &tests).faults,
            [
                "docs/weak-points.md names the test one_that_is_not_there, which is not there",
                "docs/weak-points.md leaves out the weak points {1}"
            ]
        );
    }
}
