//! What the API server takes as keys and values of labels, annotations and taints: a configuration
//! that it would refuse with each write is refused at the start.

use health_event::node::is_dns_subdomain;

/// Longest name behind the prefix of a key, and longest value.
const LONGEST: usize = 63;

pub(super) const KEY_ALLOWED: &str = "a key as Kubernetes takes it: NAME or DOMAIN/NAME, NAME of at \
    most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends";
pub(super) const VALUE_ALLOWED: &str = "a value as Kubernetes takes it: at most 63 letters, digits, \
    '-', '_' and '.', with a letter or digit at both ends, or \"\"";
pub(super) const PREFIX_ALLOWED: &str =
    "a DNS subdomain with / behind it, for example k8saas.nvidia.com/, or \"\"";

/// Whether a text can be the key of a label, an annotation or a taint.
pub(super) fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_dns_subdomain(domain) && is_name(name),
        None => is_name(text),
    }
}

/// Whether a text can be the value of a label or a taint.
pub(super) fn is_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// Whether a text can stand before the names of labels.
pub(super) fn is_prefix(text: &str) -> bool {
    text.is_empty() || text.strip_suffix('/').is_some_and(is_dns_subdomain)
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let at_end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= LONGEST
        && at_end(bytes.first())
        && at_end(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}
