//! Which known name somebody meant who wrote another.

/// `; did you mean NAME?` where a name looks like a known one, else nothing.
pub(super) fn meant<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let plain_name = plain(name);
    let distances = known
        .into_iter()
        .map(|known| (distance(&plain_name, &plain(known)), known));
    // A third of the letters: more is another word.
    let near = distances.filter(|(distance, known)| *distance <= known.chars().count() / 3);
    near.min()
        .map_or_else(String::new, |(_, known)| format!("; did you mean {known}?"))
}

/// What is the same in `dry_run`, `dryRun` and `dry-run`; of a long name its beginning, which bounds the
/// work.
fn plain(name: &str) -> Vec<char> {
    let letters = name.chars().filter(|c| c.is_alphanumeric()).take(64);
    letters.map(|c| c.to_ascii_lowercase()).collect()
}

/// Letters to put in, take out, exchange or swap with their neighbour until the one is the other.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let exchanged = row[j] + usize::from(a != b);
            let mut best = exchanged.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_alike_is_named_and_another_word_is_not() {
        let known = [
            "enabled",
            "dry_run",
            "max_bytes",
            "circuitBreaker",
            "ladder",
        ];
        for (name, want) in [
            ("enable", "enabled"),
            ("dryRun", "dry_run"),
            ("dry-run", "dry_run"),
            ("max_byte", "max_bytes"),
            ("circuit_breaker", "circuitBreaker"),
            ("Lader", "ladder"),
            ("enabeld", "enabled"),
        ] {
            assert_eq!(meant(name, known), format!("; did you mean {want}?"));
        }
        for other in ["surprise", "", "é", "x", &"enabled".repeat(1_000)] {
            assert_eq!(meant(other, known), "", "{other}");
        }
        assert_eq!(meant("a", []), "");
    }
}
