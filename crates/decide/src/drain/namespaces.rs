//! Which namespaces are drained, and how.

use std::fmt;

use regex::Regex;

/// How pods of a namespace are moved off. Names are the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictMode {
    /// Evicted at once.
    Immediate,
    /// Waited for until they finish.
    AllowCompletion,
    /// Waited for, and deleted once the time is over.
    DeleteAfterTimeout,
}

impl EvictMode {
    /// All, with their names in the configuration.
    pub const NAMED: [(Self, &'static str); 3] = [
        (Self::Immediate, "Immediate"),
        (Self::AllowCompletion, "AllowCompletion"),
        (Self::DeleteAfterTimeout, "DeleteAfterTimeout"),
    ];

    /// From its name in the configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(mode, _)| *mode)
    }
}

/// Why a policy can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not a pattern.
    #[error(
        "\"{pattern}\" is no pattern of namespaces: {why}; * stands for any text, ? for one character, [a-z] for one of a range"
    )]
    Pattern {
        /// The text.
        pattern: String,
        /// Why.
        why: String,
    },
    /// Not a regular expression.
    #[error("\"{0}\" is no regular expression of namespaces: {1}")]
    System(String, String),
}

impl PolicyError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Pattern { .. } => "bad_namespace_pattern",
            Self::System(..) => "bad_system_namespaces",
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    /// Plain characters of the pattern: the more, the more it says.
    plain: usize,
    pattern: Regex,
    text: String,
    mode: EvictMode,
}

/// The namespaces of a policy.
///
/// A namespace that matches several patterns has the mode of the one with the most plain
/// characters, so that `database` counts before `data*` and that before `*`; of two alike the
/// first. One that matches none, or a system namespace, is left alone.
#[derive(Clone, Default)]
pub struct Namespaces {
    entries: Vec<Entry>,
    system: Option<Regex>,
}

impl fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|e| (&e.text, e.mode));
        f.debug_struct("Namespaces")
            .field("entries", &entries.collect::<Vec<_>>())
            .field("system", &self.system.as_ref().map(Regex::as_str))
            .finish()
    }
}

impl PartialEq for Namespaces {
    fn eq(&self, other: &Self) -> bool {
        let texts =
            |n: &Self| -> Vec<_> { n.entries.iter().map(|e| (e.text.clone(), e.mode)).collect() };
        let system = |n: &Self| n.system.as_ref().map(|s| s.as_str().to_owned());
        texts(self) == texts(other) && system(self) == system(other)
    }
}

impl Eq for Namespaces {}

impl Namespaces {
    /// From the entries of `[[drain.userNamespaces]]` (shell patterns, as Go's `filepath.Match`
    /// reads them) and `drain.systemNamespaces` (a regular expression that may match anywhere;
    /// empty: none).
    ///
    /// # Errors
    /// [`PolicyError`], of the first that is wrong.
    pub fn new<'a>(
        entries: impl IntoIterator<Item = (&'a str, EvictMode)>,
        system: &str,
    ) -> Result<Self, PolicyError> {
        let system = match system {
            "" => None,
            text => Some(
                Regex::new(text)
                    .map_err(|e| PolicyError::System(text.to_owned(), e.to_string()))?,
            ),
        };
        let entries = entries.into_iter().map(|(text, mode)| {
            let (pattern, plain) = translate(text).map_err(|why| PolicyError::Pattern {
                pattern: text.to_owned(),
                why: why.to_owned(),
            })?;
            let pattern = Regex::new(&pattern).map_err(|e| PolicyError::Pattern {
                pattern: text.to_owned(),
                why: e.to_string(),
            })?;
            let text = text.to_owned();
            Ok(Entry {
                plain,
                pattern,
                text,
                mode,
            })
        });
        let entries = entries.collect::<Result<_, _>>()?;
        Ok(Self { entries, system })
    }

    /// How pods of a namespace are moved off; `None`: they are left alone.
    pub fn mode(&self, namespace: &str) -> Option<EvictMode> {
        if self.is_system(namespace) {
            return None;
        }
        let mut best: Option<&Entry> = None;
        for entry in &self.entries {
            let better = best.is_none_or(|best| entry.plain > best.plain);
            if better && entry.pattern.is_match(namespace) {
                best = Some(entry);
            }
        }
        best.map(|entry| entry.mode)
    }

    /// Whether it is a system namespace.
    pub fn is_system(&self, namespace: &str) -> bool {
        self.system.as_ref().is_some_and(|s| s.is_match(namespace))
    }
}

/// A shell pattern as a regular expression, with the number of its plain characters.
fn translate(text: &str) -> Result<(String, usize), &'static str> {
    let (mut out, mut plain) = ("^(?:".to_owned(), 0);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' => out.push_str("[^/]*"),
            '?' => out.push_str("[^/]"),
            '[' => class(&mut chars, &mut out)?,
            '\\' => {
                let escaped = chars.next().ok_or("it ends with \\")?;
                plain += 1;
                out.push_str(&regex::escape(&escaped.to_string()));
            }
            c => {
                plain += 1;
                out.push_str(&regex::escape(&c.to_string()));
            }
        }
    }
    if text.is_empty() {
        return Err("it is empty");
    }
    out.push_str(")$");
    Ok((out, plain))
}

/// A class of characters, from behind its `[` to its `]`.
fn class(chars: &mut std::str::Chars<'_>, out: &mut String) -> Result<(), &'static str> {
    const OPEN: &str = "a [ is not closed";
    out.push('[');
    let mut members = 0;
    if chars.as_str().starts_with('^') {
        chars.next();
        out.push('^');
    }
    loop {
        let c = match chars.next().ok_or(OPEN)? {
            ']' if members > 0 => break,
            ']' => return Err("a [ ] names no character"),
            '\\' => chars.next().ok_or(OPEN)?,
            '-' if members == 0 => return Err("a range has no beginning"),
            '-' => {
                let end = match chars.next().ok_or(OPEN)? {
                    ']' => return Err("a range has no end"),
                    '\\' => chars.next().ok_or(OPEN)?,
                    c => c,
                };
                out.push('-');
                out.push_str(&in_class(end));
                continue;
            }
            c => c,
        };
        members += 1;
        out.push_str(&in_class(c));
    }
    out.push(']');
    Ok(())
}

fn in_class(c: char) -> String {
    if c.is_alphanumeric() {
        c.to_string()
    } else {
        format!("\\x{{{:x}}}", u32::from(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespaces(entries: &[(&str, EvictMode)], system: &str) -> Namespaces {
        Namespaces::new(entries.iter().copied(), system).unwrap()
    }

    #[test]
    fn the_pattern_that_says_most_counts() {
        use EvictMode::{AllowCompletion, DeleteAfterTimeout, Immediate};
        let policy = namespaces(
            &[
                ("*", Immediate),
                ("database", AllowCompletion),
                ("data*", DeleteAfterTimeout),
                ("team-?", AllowCompletion),
                ("team-[a-c]", DeleteAfterTimeout),
            ],
            "^(kube-system|warden)$",
        );
        for (namespace, mode) in [
            ("web", Some(Immediate)),
            ("database", Some(AllowCompletion)),
            ("databases", Some(DeleteAfterTimeout)),
            ("team-x", Some(AllowCompletion)),
            ("team-b", Some(AllowCompletion)),
            ("team-xy", Some(Immediate)),
            ("kube-system", None),
            ("kube-system-2", Some(Immediate)),
            ("warden", None),
        ] {
            assert_eq!(policy.mode(namespace), mode, "{namespace}");
        }
        assert_eq!(namespaces(&[("a", Immediate)], "").mode("b"), None);
    }

    #[test]
    fn the_expression_of_system_namespaces_may_match_anywhere() {
        let policy = namespaces(&[("*", EvictMode::Immediate)], "kube-");
        assert!(policy.is_system("my-kube-tools"));
        assert_eq!(policy.mode("my-kube-tools"), None);
    }

    #[test]
    fn patterns_are_read_as_go_reads_them() {
        for (pattern, text, matches) in [
            ("a*", "abc", true),
            ("a*", "b", false),
            ("*", "anything", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[ab-]x", "bx", false),
            (r"a\*c", "a*c", true),
            (r"a\*c", "abc", false),
            ("a.c", "abc", false),
            ("a+", "aa", false),
            (r"[\]a]x", "]x", true),
        ] {
            let read = Namespaces::new([(pattern, EvictMode::Immediate)], "");
            let Ok(read) = read else {
                assert!(!matches, "{pattern} was refused");
                continue;
            };
            assert_eq!(read.mode(text).is_some(), matches, "{pattern} on {text}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_by_its_text() {
        for bad in ["", "[", "[a", "a[]b", r"\", "[a-", "[-a]", "[a-]", "[z-a]"] {
            let error = Namespaces::new([(bad, EvictMode::Immediate)], "").unwrap_err();
            assert_eq!(error.code(), "bad_namespace_pattern");
            assert!(error.to_string().contains(&format!("\"{bad}\"")), "{error}");
        }
        let error = Namespaces::new([], "(").unwrap_err();
        assert_eq!(error.code(), "bad_system_namespaces");
    }
}
