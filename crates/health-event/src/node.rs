//! Node names.

use std::fmt;
use std::sync::Arc;

/// The name of a Kubernetes node: a DNS subdomain of at most 253 bytes (RFC 1123, as the API
/// server enforces it). Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// Why a text is not a node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a node name: lower-case letters, digits, '-' and '.', starting and ending \
     with a letter or digit, at most 253 bytes"
)]
pub struct NameError {
    text: String,
}

impl NodeName {
    /// Checks and takes over a name.
    ///
    /// # Errors
    /// [`NameError`] if the text is not a DNS subdomain; the error quotes at most 64 characters.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if is_dns_subdomain(text) {
            Ok(Self(Arc::from(text)))
        } else {
            Err(NameError {
                text: text.chars().take(64).collect(),
            })
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl AsRef<str> for NodeName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for NodeName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

/// Whether a text is a DNS subdomain as RFC 1123 and Kubernetes define it.
pub fn is_dns_subdomain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.first().is_some_and(|b| alphanumeric(*b))
        && bytes.last().is_some_and(|b| alphanumeric(*b))
        && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_api_servers_rule() {
        for good in [
            "gpu-17",
            "a",
            "10.0.0.1",
            "ip-10-0-0-1.eu-west-1.compute.internal",
        ] {
            assert_eq!(NodeName::new(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(254);
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a_b",
            "a..b",
            ".a",
            "a.",
            "ä",
            "a b",
            long.as_str(),
        ] {
            assert!(NodeName::new(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
