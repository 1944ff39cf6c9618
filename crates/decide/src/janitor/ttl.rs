//! When a repair object that is over goes: the reference's annotations of a time to live (janitor:
//! TTL cleanup).
//!
//! # Invariants (`tests`)
//! - What is not over never goes: its deadline ends it first. (The reference counts from the first
//!   sight, and deletes a repair in the midst.)
//! - An expiry that was written once stays.

use jiff::{SignedDuration, Timestamp};

use crate::later;

/// Longest time to live, so that every sum is a time: 100 years.
const LONGEST: SignedDuration = SignedDuration::from_hours(100 * 365 * 24);

/// The object, reduced to what decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Object<'a> {
    /// Annotation `ttl`: a span as Go writes it.
    pub ttl: Option<&'a str>,
    /// Annotation `expiry`: a time as of RFC 3339.
    pub expiry: Option<&'a str>,
    /// Annotation `preserve`.
    pub preserve: Option<&'a str>,
    /// It is being deleted.
    pub deleting: bool,
    /// It is at its end.
    pub over: bool,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing, whenever.
    Keep,
    /// Nothing before then; for one that is not over, nothing before it is.
    Wait(Timestamp),
    /// Both annotations are written.
    Annotate {
        /// Annotation `ttl`.
        ttl: String,
        /// Annotation `expiry`.
        expiry: Timestamp,
    },
    /// It is deleted.
    Delete,
}

/// What is done about an object's time to live; `default`, where it has none: zero is none.
pub fn decide(object: &Object<'_>, default: SignedDuration, now: Timestamp) -> Step {
    if object.deleting || object.preserve == Some("true") {
        return Step::Keep;
    }
    let ttl = match object.ttl {
        Some(text) => parse(text),
        None => Some(default),
    };
    let Some(ttl) = ttl.filter(SignedDuration::is_positive) else {
        return Step::Keep;
    };
    let expiry = object
        .expiry
        .and_then(|text| text.parse::<Timestamp>().ok());
    match expiry {
        None => Step::Annotate {
            ttl: object.ttl.map_or_else(|| render(ttl), str::to_owned),
            expiry: later(now, ttl),
        },
        Some(at) if at > now || !object.over => Step::Wait(at),
        Some(_) => Step::Delete,
    }
}

/// When an object made at `at` with this annotation `ttl` goes, in whole seconds as Kubernetes keeps
/// times; at once where the text is no span.
pub fn expiry(ttl: &str, at: Timestamp) -> Timestamp {
    let end = later(at, parse(ttl).unwrap_or_default());
    Timestamp::from_second(end.as_second()).unwrap_or(end)
}

/// A span as Go's `time.ParseDuration` reads it: `336h`, `1h30m`, `1.5h`, `-5s`, `0`; none if it is
/// none, or longer than a century.
pub fn parse(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let one = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * one;
        rest = next;
    }
    let span = SignedDuration::try_from_secs_f64(seconds).ok()?;
    let span = (span <= LONGEST).then_some(span)?;
    Some(if negative { -span } else { span })
}

/// A span of whole seconds as Go writes it: `336h0m0s`.
fn render(span: SignedDuration) -> String {
    let seconds = span.as_secs();
    let (h, m, s) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, _) => format!("{m}m{s}s"),
        _ => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::at;

    const DAYS: SignedDuration = SignedDuration::from_hours(336);
    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn over() -> Object<'static> {
        Object {
            over: true,
            ..Object::default()
        }
    }

    #[test]
    fn d01_d02_d21_what_goes_or_is_preserved_is_left_alone() {
        let expired = Object {
            ttl: Some("1h"),
            expiry: Some("1969-12-31T23:00:00Z"),
            ..over()
        };
        assert_eq!(decide(&expired, DAYS, at(0)), Step::Delete);
        let deleting = Object {
            deleting: true,
            ..expired
        };
        let preserved = Object {
            preserve: Some("true"),
            ..expired
        };
        for kept in [deleting, preserved] {
            assert_eq!(decide(&kept, DAYS, at(0)), Step::Keep, "{kept:?}");
        }
        let no_word = Object {
            preserve: Some("false"),
            ..expired
        };
        assert_eq!(decide(&no_word, DAYS, at(0)), Step::Delete);
    }

    #[test]
    fn d03_d05_d06_d07_d15_whose_time_counts() {
        assert_eq!(decide(&over(), SignedDuration::ZERO, at(0)), Step::Keep);
        let annotate = |ttl: &str, span| Step::Annotate {
            ttl: ttl.to_owned(),
            expiry: later(at(0), span),
        };
        assert_eq!(decide(&over(), DAYS, at(0)), annotate("336h0m0s", DAYS));
        let with = |ttl| Object {
            ttl: Some(ttl),
            ..over()
        };
        assert_eq!(decide(&with("60m"), DAYS, at(0)), annotate("60m", HOUR));
        for bad in [
            "soon",
            "",
            "0",
            "0s",
            "-1h",
            "5",
            "1x",
            "h",
            "1e9h",
            "99999999999h",
        ] {
            assert_eq!(decide(&with(bad), DAYS, at(0)), Step::Keep, "{bad:?}");
        }
    }

    #[test]
    fn d09_d10_d11_d13_d14_d19_when_it_goes() {
        let expiry = at(60).to_string();
        let object = Object {
            ttl: Some("1h"),
            expiry: Some(&expiry),
            ..over()
        };
        assert_eq!(decide(&object, DAYS, at(0)), Step::Wait(at(60)));
        assert_eq!(decide(&object, DAYS, at(59)), Step::Wait(at(60)));
        assert_eq!(decide(&object, DAYS, at(60)), Step::Delete);
        assert_eq!(decide(&object, DAYS, at(61)), Step::Delete);
        let bad = Object {
            expiry: Some("then"),
            ..object
        };
        assert!(
            matches!(decide(&bad, DAYS, at(0)), Step::Annotate { expiry, .. } if expiry == at(60))
        );
    }

    #[test]
    fn what_is_not_over_never_goes() {
        let expiry = at(60).to_string();
        let object = Object {
            ttl: Some("1h"),
            expiry: Some(&expiry),
            over: false,
            ..Object::default()
        };
        assert_eq!(decide(&object, DAYS, at(600)), Step::Wait(at(60)));
    }

    #[test]
    fn spans_are_read_and_written_as_go_does() {
        for (text, seconds) in [
            ("336h", 336 * 3_600),
            ("1h30m", 5_400),
            ("1.5h", 5_400),
            ("+2m", 120),
            ("-5s", -5),
            ("1000ms", 1),
        ] {
            assert_eq!(
                parse(text),
                Some(SignedDuration::from_secs(seconds)),
                "{text}"
            );
        }
        for (seconds, text) in [(5, "5s"), (65, "1m5s"), (5_400, "1h30m0s")] {
            assert_eq!(render(SignedDuration::from_secs(seconds)), text);
        }
    }
}
