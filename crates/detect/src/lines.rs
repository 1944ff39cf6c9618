//! The forms in which people keep kernel logs: what stands before the kernel's own text.
//!
//! Detection searches, so a prefix does not matter to it. What is read here is whether a line is a
//! record of `/dev/kmsg`, and the time as printed, for people.

use std::sync::OnceLock;

use regex::bytes::Regex;

use crate::kmsg::{Origin, Record};
use crate::pattern::compiled;

const FORMS: &str = concat!(
    // `<3>` of `dmesg -r` and syslog, the version of RFC 5424, `kern  :err   : ` of `-x`.
    r"^(?:<[0-9]{1,3}>)?(?:1 )?(?:[a-z]+ *:[a-z]+ *: *)?(?:",
    r"\[([^\]\n]{1,32})\]",
    r"|([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}[0-9.,:Z+-]{0,20})",
    r"|([A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?))",
);

/// A line, without its end, as a record: of `/dev/kmsg` if it has that form, else as printed.
pub fn record(line: &[u8]) -> Record<'_> {
    let kmsg = line.first().is_some_and(u8::is_ascii_digit);
    let parsed = kmsg.then(|| Record::parse(line).ok()).flatten();
    parsed.unwrap_or_else(|| Record::printed(line))
}

/// The time as the line prints it: seconds since boot, or a date as the program that wrote the
/// line likes it. Nothing if the form is not known.
pub fn stamp(line: &[u8]) -> Option<String> {
    static STAMP: OnceLock<Regex> = OnceLock::new();
    let record = record(line);
    if record.origin != Origin::Unknown {
        let time = record.monotonic;
        return Some(format!("{}.{:06}", time.as_secs(), time.subsec_micros()));
    }
    let captures = compiled(&STAMP, FORMS).captures(line)?;
    let stamp = captures.iter().skip(1).flatten().next()?;
    Some(String::from_utf8_lossy(stamp.as_bytes()).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_common_form_shows_its_time() {
        let table = [
            ("[   12.345678] NVRM: Xid", Some("12.345678")),
            (
                "[Wed Dec 11 13:23:01 2024] NVRM: Xid",
                Some("Wed Dec 11 13:23:01 2024"),
            ),
            ("kern  :err   : [   12.345678] NVRM: Xid", Some("12.345678")),
            (
                "kern  :warn  : [Wed Dec 11 13:23:01 2024] x",
                Some("Wed Dec 11 13:23:01 2024"),
            ),
            ("<3>[   12.345678] NVRM: Xid", Some("12.345678")),
            (
                "2024-12-11T13:23:01,123456+00:00 NVRM: Xid",
                Some("2024-12-11T13:23:01,123456+00:00"),
            ),
            (
                "2024-12-11T13:23:01+0000 gpu-1 kernel: NVRM: Xid",
                Some("2024-12-11T13:23:01+0000"),
            ),
            (
                "Dec 11 13:23:01 gpu-1 kernel: [   12.3] NVRM: Xid",
                Some("Dec 11 13:23:01"),
            ),
            (
                "Dec  1 13:23:01.000123 gpu-1 kernel: NVRM: Xid",
                Some("Dec  1 13:23:01.000123"),
            ),
            (
                "<11>1 2024-12-11T13:23:01Z gpu-1 kernel - - - NVRM",
                Some("2024-12-11T13:23:01Z"),
            ),
            ("3,1204,12345678,-;NVRM: Xid", Some("12.345678")),
            ("4,1204,345678,-,caller=T1;NVRM: Xid", Some("0.345678")),
            ("NVRM: Xid (PCI:0000:3f:00): 46", None),
            ("", None),
        ];
        for (line, want) in table {
            assert_eq!(stamp(line.as_bytes()).as_deref(), want, "{line}");
        }
    }

    #[test]
    fn a_line_that_only_begins_like_a_kmsg_record_is_taken_as_printed() {
        for line in ["2024-12-11 x; y", "12 monkeys", "1,2;x"] {
            let record = record(line.as_bytes());
            assert_eq!(record.origin, Origin::Unknown, "{line}");
            assert_eq!(record.raw(), line.as_bytes(), "{line}");
        }
    }
}
