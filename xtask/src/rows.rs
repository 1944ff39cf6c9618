//! The reference's acceptance rows: each is a test that carries its number, or a line in
//! `docs/differences.md` that names it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::Context;

/// Rows of the quarantine acceptance list that concern quarantine, rules, breaker, annotations and
/// manual actions, as ranges of their numbers. Those about drain, repair, the shared state label
/// and resume tokens (17–21, 23–38, 177–188) belong to the parts that are not built yet.
const IN_SCOPE: [(u16, u16); 10] = [
    (1, 16),
    (22, 22),
    (40, 42),
    (44, 66),
    (68, 88),
    (89, 102),
    (104, 113),
    (114, 138),
    (140, 158),
    (160, 176),
];

/// Numbers that the list leaves out.
const NOT_LISTED: [u16; 43] = [
    3, 7, 11, 15, 47, 51, 55, 59, 63, 71, 75, 79, 83, 87, 91, 95, 99, 103, 107, 111, 115, 119, 123,
    127, 131, 135, 139, 143, 147, 151, 155, 159, 163, 167, 171, 175, 43, 39, 35, 31, 27, 23, 19,
];

/// How the rows stand.
pub(crate) struct Rows {
    tested: BTreeSet<u16>,
    differing: BTreeSet<u16>,
    /// Rows without either.
    pub(crate) open: BTreeSet<u16>,
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acceptance rows (quarantine): {} tested, {} differing, {} open",
            self.tested.len(),
            self.differing.len(),
            self.open.len()
        )?;
        if !self.open.is_empty() {
            write!(f, ": {:?}", self.open)?;
        }
        Ok(())
    }
}

/// Looks for every row in the tests and in the list of differences.
pub(crate) fn count(root: &Path) -> anyhow::Result<Rows> {
    let wanted: BTreeSet<u16> = IN_SCOPE
        .iter()
        .flat_map(|(first, last)| *first..=*last)
        .filter(|row| !NOT_LISTED.contains(row))
        .collect();
    let mut named = BTreeSet::new();
    let own = root.join("xtask");
    for path in crate::rust_files(root)?
        .into_iter()
        .filter(|path| !path.starts_with(&own))
    {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        named.extend(test_names(&text).flat_map(rows_of_name));
    }
    let list = root.join("docs/differences.md");
    let text =
        std::fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let differing: BTreeSet<u16> = rows_of_differences(&text)
        .filter(|row| wanted.contains(row) && !named.contains(row))
        .collect();
    let tested: BTreeSet<u16> = wanted.intersection(&named).copied().collect();
    let open = wanted
        .iter()
        .filter(|r| !tested.contains(r) && !differing.contains(r))
        .copied()
        .collect();
    Ok(Rows {
        tested,
        differing,
        open,
    })
}

/// Names of functions directly below a test attribute.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let after = |attribute| text.split(attribute).skip(1);
    after("#[test]")
        .chain(after("#[tokio::test"))
        .filter_map(|after| {
            let name = after.split("fn ").nth(1)?;
            name.split(['(', '<']).next()
        })
}

/// `row_052_053_any_…` names rows 52 and 53.
fn rows_of_name(name: &str) -> impl Iterator<Item = u16> {
    let numbers = name.trim().strip_prefix("row_").unwrap_or_default();
    numbers.split('_').map_while(|part| part.parse().ok())
}

/// `(row 6)` or `(rows 6, 42)` in a line of the list.
fn rows_of_differences(text: &str) -> impl Iterator<Item = u16> {
    text.split("(row").skip(1).flat_map(|part| {
        let inside = part.split(')').next().unwrap_or_default();
        inside
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_names_and_differences() {
        let text = "#[test]\n fn row_052_053_any_of_nothing() {}\n#[test] fn other() {}";
        let rows: Vec<u16> = test_names(text).flat_map(rows_of_name).collect();
        assert_eq!(rows, [52, 53]);
        let rows: Vec<u16> =
            rows_of_differences("| a | (row 6) |\n| b | (rows 41, 42) |").collect();
        assert_eq!(rows, [6, 41, 42]);
    }
}
