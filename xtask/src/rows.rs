//! The reference's acceptance rows: each is a test that carries its number, or a line in
//! `docs/differences.md` that names it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::Context;

/// One of the reference's lists, which number their rows each for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    /// Of quarantine: `row_017_…`.
    Quarantine,
    /// Of drain and remediation: `drain_row_9_…` or `repair_row_136_…`.
    Drain,
    /// Of janitor, by the letter of its part: `r02_…`, `l05_…`, `d13_…`.
    Janitor(char),
}

type Row = (List, u16);

/// Rows that belong together.
struct Section {
    name: &'static str,
    list: List,
    rows: RangeInclusive<u16>,
    /// Each list leaves out every fourth number: those with this remainder.
    left_out: u16,
}

impl Section {
    const fn new(name: &'static str, list: List, rows: RangeInclusive<u16>, left_out: u16) -> Self {
        Self {
            name,
            list,
            rows,
            left_out,
        }
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        let listed = |row: &u16| row % 4 != self.left_out;
        let list = self.list;
        self.rows.clone().filter(listed).map(move |row| (list, row))
    }
}

/// The parts of the lists that are built. Of drain and remediation, partial drains (46–69), log
/// collection (190–200) and external remediation (201–206) are not.
const SECTIONS: [Section; 12] = {
    use List::{Drain, Janitor, Quarantine};
    [
        Section::new("quarantine", Quarantine, 1..=176, 3),
        Section::new("quarantine: label, resume", Quarantine, 177..=188, 3),
        Section::new("drain: modes, pods", Drain, 1..=26, 3),
        Section::new("drain: cancellation", Drain, 28..=45, 3),
        Section::new("drain: queue, start", Drain, 70..=86, 3),
        Section::new("drain: plugins", Drain, 88..=101, 3),
        Section::new("state label", Drain, 102..=108, 3),
        Section::new("repair: settings, objects", Drain, 109..=136, 3),
        Section::new("repair", Drain, 137..=189, 3),
        Section::new("janitor: reboot", Janitor('R'), 2..=19, 1),
        Section::new("janitor: lock", Janitor('L'), 1..=23, 0),
        Section::new("janitor: time to live", Janitor('D'), 1..=21, 0),
    ]
};

/// How the rows of a section stand.
struct Counted {
    name: &'static str,
    tested: usize,
    differing: usize,
    open: Vec<Row>,
}

/// How the rows stand.
pub(crate) struct Rows(Vec<Counted>);

impl Rows {
    /// Rows that have neither a test nor a line, in words.
    pub(crate) fn open(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|counted| {
            let of = counted.name;
            counted
                .open
                .iter()
                .map(move |row| format!("acceptance row {} ({of})", shown(*row)))
        })
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Counted) -> usize| self.0.iter().map(of).sum::<usize>();
        write!(
            f,
            "acceptance rows: {} tested, {} differing, {} open",
            sum(|c| c.tested),
            sum(|c| c.differing),
            sum(|c| c.open.len())
        )?;
        for Counted {
            name,
            tested,
            differing,
            open,
        } in &self.0
        {
            write!(
                f,
                "\n  {name:<28}{tested:>4} tested {differing:>3} differing {:>3} open",
                open.len()
            )?;
            let open: Vec<String> = open.iter().map(|row| shown(*row)).collect();
            if !open.is_empty() {
                write!(f, ": {}", open.join(", "))?;
            }
        }
        Ok(())
    }
}

/// As `docs/differences.md` names it.
fn shown((list, row): Row) -> String {
    match list {
        List::Janitor(letter) => format!("{letter}{row}"),
        List::Quarantine | List::Drain => row.to_string(),
    }
}

/// Looks for every row in the tests and in the list of differences.
pub(crate) fn count(root: &Path) -> anyhow::Result<Rows> {
    let named: BTreeSet<Row> = all_test_names(root)?
        .iter()
        .flat_map(|name| rows_of_name(name))
        .collect();
    let list = root.join("docs/differences.md");
    let text =
        std::fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let differ: BTreeSet<Row> = rows_of_differences(&text).collect();
    let counted = SECTIONS.iter().map(|section| {
        let (tested, rest): (Vec<Row>, Vec<Row>) =
            section.rows().partition(|row| named.contains(row));
        let (differing, open): (Vec<Row>, Vec<Row>) =
            rest.into_iter().partition(|row| differ.contains(row));
        Counted {
            name: section.name,
            tested: tested.len(),
            differing: differing.len(),
            open,
        }
    });
    Ok(Rows(counted.collect()))
}

/// Names of all tests but those of this program.
pub(crate) fn all_test_names(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let own = root.join("xtask");
    for path in crate::rust_files(root)?
        .into_iter()
        .filter(|path| !path.starts_with(&own))
    {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        names.extend(test_names(&text).map(|name| name.trim().to_owned()));
    }
    Ok(names)
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

/// `row_052_053_drain_row_9_l02_any_…` names 52 and 53 of quarantine, 9 of drain and L2 of janitor.
fn rows_of_name(name: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut list = None;
    let mut words = name.trim().split('_').peekable();
    while let Some(word) = words.next() {
        match (word, list) {
            ("row", _) => list = Some(List::Quarantine),
            ("drain" | "repair", _) if words.next_if_eq(&"row").is_some() => {
                list = Some(List::Drain);
            }
            (word, list) => match (word.parse(), list) {
                (Ok(row), Some(list)) => rows.push((list, row)),
                _ => match of_janitor(word) {
                    Some(row) => rows.push(row),
                    None => break,
                },
            },
        }
    }
    rows
}

/// `l05` or `L5`.
fn of_janitor(word: &str) -> Option<Row> {
    let letter = word.chars().next()?.to_ascii_uppercase();
    let row = word.get(1..)?.parse().ok()?;
    ['R', 'L', 'D']
        .contains(&letter)
        .then_some((List::Janitor(letter), row))
}

/// `(row 6)`, `(rows 41, 42)`, `(row 28; repair rows 165, 168)`, `(rows D1–D21; weak point 24)`.
fn rows_of_differences(text: &str) -> impl Iterator<Item = Row> {
    let inside = text.split('(').skip(1);
    let inside = inside.filter_map(|part| part.split_once(')').map(|(inside, _)| inside));
    inside.flat_map(|inside| inside.split(';').flat_map(rows_of_part))
}

fn rows_of_part(part: &str) -> Vec<Row> {
    let mut words = part.split([' ', ',', ':']).filter(|word| !word.is_empty());
    let mut list = List::Quarantine;
    match words.next() {
        Some("row" | "rows") => {}
        Some(of @ ("drain" | "repair" | "janitor"))
            if matches!(words.next(), Some("row" | "rows")) =>
        {
            if of != "janitor" {
                list = List::Drain;
            }
        }
        _ => return Vec::new(),
    }
    let row = |word: &str| match word.parse() {
        Ok(row) => Some((list, row)),
        Err(_) => of_janitor(word),
    };
    let ends = |word: &str| {
        let (from, to) = word.split_once('–').unwrap_or((word, word));
        let ((list, from), (_, to)) = (row(from)?, row(to)?);
        Some((from..=to).map(move |row| (list, row)))
    };
    words.map_while(ends).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_names_of_tests() {
        let text = "#[test]\n fn row_052_053_any_of_7_nothing() {}\n#[test] fn other() {}";
        let rows: Vec<Row> = test_names(text).flat_map(rows_of_name).collect();
        assert_eq!(rows, [(List::Quarantine, 52), (List::Quarantine, 53)]);
        assert_eq!(
            rows_of_name("drain_row_9_10_row_022_r02_l15_a_7"),
            [
                (List::Drain, 9),
                (List::Drain, 10),
                (List::Quarantine, 22),
                (List::Janitor('R'), 2),
                (List::Janitor('L'), 15),
            ]
        );
        for none in [
            "drain_9_pods",
            "r_2",
            "row_of_7",
            "repair_of_row_7",
            "j04_x",
        ] {
            assert_eq!(rows_of_name(none), [], "{none}");
        }
    }

    #[test]
    fn numbers_are_read_from_the_list_of_differences() {
        let read = |text: &str| rows_of_differences(text).collect::<Vec<Row>>();
        let quarantine = |row| (List::Quarantine, row);
        assert_eq!(
            read("| a | (row 6) |\n| b | (rows 41, 42) | (row 80: both are removed)"),
            [6, 41, 42, 80].map(quarantine)
        );
        assert_eq!(
            read("(row 28; repair rows 165, 168–169)"),
            [
                quarantine(28),
                (List::Drain, 165),
                (List::Drain, 168),
                (List::Drain, 169)
            ]
        );
        let janitor = [
            (List::Janitor('R'), 3),
            (List::Janitor('D'), 1),
            (List::Janitor('D'), 2),
        ];
        assert_eq!(
            read("(janitor rows R3, W4; weak point 16) (rows D1–D2; weak points 4, 5)"),
            janitor
        );
        assert_eq!(read("(5 min) (weak points 13–15) (brows 7)"), []);
    }

    #[test]
    fn each_section_leaves_out_what_its_list_leaves_out() {
        let count = |name| {
            let section = SECTIONS.iter().find(|section| section.name == name);
            section.map(|section| section.rows().count())
        };
        assert_eq!(count("state label"), Some(5));
        assert_eq!(count("janitor: reboot"), Some(14));
        assert_eq!(count("janitor: lock"), Some(18));
        assert_eq!(count("janitor: time to live"), Some(16));
    }
}
