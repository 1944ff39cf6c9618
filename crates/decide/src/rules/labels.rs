//! Label values made from names and messages.

/// Greatest length of a label value, in bytes (Kubernetes).
pub const LABEL_LIMIT: usize = 63;

/// A legal label value: every character outside `[A-Za-z0-9_.-]` becomes `-`, the text is cut to
/// `limit` bytes (at most [`LABEL_LIMIT`]), and both ends are trimmed to a letter or digit.
pub fn label_value(text: &str, limit: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' => c,
            _ => '-',
        })
        .take(limit.min(LABEL_LIMIT))
        .collect();
    clean
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// `cordon-reason`: the reasons in the given order, joined by `-`, as a label value.
pub fn cordon_reason<'a>(reasons: impl IntoIterator<Item = &'a str>) -> String {
    let joined = reasons.into_iter().collect::<Vec<_>>().join("-");
    label_value(&joined, LABEL_LIMIT)
}
