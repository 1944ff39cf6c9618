//! Texts of logs, monitors and objects, made fit to be shown, and numbers of things: one function for
//! all that show them.

use std::borrow::Cow;

/// A text without what would steer a terminal or hide in it:
///
/// - escape sequences (ECMA-48) go whole, a title or link (OSC) with its text; one that is not
///   ended goes as far as it was begun, so that it can't hide what follows;
/// - control characters and format characters (Unicode's category Cf: zero-width ones, those that
///   change the direction of writing, tags) go;
/// - a line's end and a tab become a blank, so that words stay apart.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\u{1b}' => &after[escape(after)..],
            '\u{9b}' => &after[control_sequence(after)..],
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => &after[string(after)..],
            _ => after,
        };
        if matches!(c, '\n' | '\t' | '\u{2028}' | '\u{2029}') {
            kept.push(' ');
        } else if !steers(c) {
            kept.push(c);
        }
    }
    Cow::Owned(kept)
}

/// The same of a name, of which something is always to be seen: where nothing would be left, its
/// first 16 characters are quoted and escaped. Names come empty or invisible too, as keys of TOML do.
pub fn named(name: &str) -> Cow<'_, str> {
    let shown = harmless(name);
    if shown.trim().is_empty() {
        let start: String = name.chars().take(16).collect();
        Cow::Owned(format!("{start:?}"))
    } else {
        shown
    }
}

/// `1 node`, `2 nodes`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// An error and what caused it: each cause once, also where an error repeats its own cause.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

/// Whether a character is no text: a control or format character, or the end of a line.
pub fn steers(c: char) -> bool {
    c.is_control() || is_format(c) || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Unicode's general category Cf, version 17.
fn is_format(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}'
            | '\u{e0020}'..='\u{e007f}'
    )
}

/// Bytes of the sequence after an escape character.
fn escape(after: &str) -> usize {
    match after.bytes().next() {
        Some(b'[') => 1 + control_sequence(&after[1..]),
        Some(b']' | b'P' | b'X' | b'^' | b'_') => 1 + string(&after[1..]),
        // Intermediate bytes, then a final one.
        Some(b' '..=b'~') => {
            let between = run(after, |b| matches!(b, b' '..=b'/'));
            between + run(&after[between..], |b| matches!(b, b'0'..=b'~')).min(1)
        }
        _ => 0,
    }
}

/// Bytes of a control sequence after what introduces it: parameters, intermediates, a final one.
fn control_sequence(after: &str) -> usize {
    let begun = run(after, |b| matches!(b, b' '..=b'?'));
    begun + run(&after[begun..], |b| matches!(b, b'@'..=b'~')).min(1)
}

/// Bytes of a string (title, link, …) after what introduces it, its end included. 0 if it has none.
fn string(after: &str) -> usize {
    let end = after.char_indices().find(|(_, c)| c.is_control());
    match end {
        Some((at, '\u{7}')) => at + 1,
        Some((at, '\u{9c}')) => at + '\u{9c}'.len_utf8(),
        Some((at, '\u{1b}')) if after[at + 1..].starts_with('\\') => at + 2,
        Some(_) | None => 0,
    }
}

/// How many bytes at the start are of a kind; all such kinds are ASCII.
fn run(text: &str, is: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|b| is(*b)).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_steers_a_terminal_or_hides_in_it_goes_and_text_stays() {
        let table = [
            ("", ""),
            ("plain — ü 漢 [2J ]0; 🙂", "plain — ü 漢 [2J ]0; 🙂"),
            ("two\r\nlines\tand tab", "two lines and tab"),
            ("a\u{2028}b\u{2029}c", "a b c"),
            ("bell\u{7} delete\u{7f} null\0", "bell delete null"),
            // Control sequences, with 7 and 8 bits, with parameters and intermediates.
            ("a\u{1b}[2Jb", "ab"),
            ("a\u{1b}[38;5;196mred\u{1b}[0mb", "aredb"),
            ("a\u{9b}31mb", "ab"),
            ("a\u{1b}[?25lb\u{1b}[4 qc", "abc"),
            // Not ended, or broken by something else.
            ("a\u{1b}[2", "a"),
            ("a\u{1b}[12é", "aé"),
            ("a\u{1b}[12\nb", "a b"),
            ("a\u{1b}[1\u{1b}[2Jb", "ab"),
            // Titles and links, ended by BEL or ST.
            ("a\u{1b}]0;owned\u{7}b", "ab"),
            (
                "a\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\b",
                "alinkb",
            ),
            ("a\u{9d}0;owned\u{9c}b", "ab"),
            (
                "a\u{1b}Pq#0\u{1b}\\b\u{1b}_x\u{9c}c\u{1b}^y\u{7}d\u{1b}Xz\u{9c}e",
                "abcde",
            ),
            // One that is not ended hides nothing.
            ("a\u{1b}]0;fatal error", "a0;fatal error"),
            ("a\u{1b}]0;fatal\nerror\u{7}", "a0;fatal error"),
            // Short ones: reset, save, a character set.
            ("a\u{1b}cb\u{1b}7c\u{1b}(Bd\u{1b}", "abcd"),
            ("a\u{1b}éb", "aéb"),
            // Format characters.
            ("a\u{200b}b\u{200c}c\u{200d}d\u{200e}e\u{200f}f", "abcdef"),
            ("\u{202a}a\u{202b}b\u{202c}c\u{202d}d\u{202e}e", "abcde"),
            ("\u{2066}a\u{2067}b\u{2068}c\u{2069}d\u{206f}", "abcd"),
            ("\u{feff}a\u{ad}b\u{61c}c\u{2060}d\u{180e}e", "abcde"),
            ("flag\u{e0067}\u{e007f}", "flag"),
        ];
        for (text, want) in table {
            assert_eq!(harmless(text), want, "{text:?}");
        }
    }

    #[test]
    fn each_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Told {
            text: &'static str,
            source: Option<Box<Told>>,
        }
        let error = |texts: &[&'static str]| {
            let wrap = |source: Option<Box<Told>>, text: &&'static str| {
                Some(Box::new(Told { text, source }))
            };
            texts.iter().rev().fold(None, wrap).unwrap()
        };
        let table: [(&[&str], &str); 5] = [
            (&["a"], "a"),
            (&["a", "b", "c"], "a: b: c"),
            (&["a: b: c", "b: c", "c"], "a: b: c"),
            (&["a: b", "b", "b"], "a: b"),
            (&["a", "b: c", "c"], "a: b: c"),
        ];
        for (texts, want) in table {
            assert_eq!(chain(&error(texts)), want);
        }
    }

    #[test]
    fn one_is_no_plural() {
        let told = [0, 1, 2].map(|count| counted(count, "fault"));
        assert_eq!(told, ["0 faults", "1 fault", "2 faults"]);
    }

    proptest! {
        #[test]
        fn nothing_that_steers_is_left_and_a_second_time_changes_nothing(
            text in "[\\PC\u{1b}\u{7}\u{9b}\u{9d}\u{9c}\\[\\];0-9mJ\u{200b}\u{202e}\n\\\\]{0,40}"
        ) {
            let shown = harmless(&text).into_owned();
            prop_assert!(!shown.contains(steers), "{:?}", shown);
            prop_assert_eq!(harmless(&shown), shown.as_str());
        }

        #[test]
        fn plain_text_is_not_touched(text in "[a-zA-Z0-9 .:;()äöü漢-]{0,40}") {
            prop_assert!(matches!(harmless(&text), Cow::Borrowed(same) if same == text));
        }
    }
}
