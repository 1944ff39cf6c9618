//! Plain words for what the API says: times, faults, actions, states.

use health_event::CloseCause;
use health_event::checks::{self, ClearedBy};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use wire::api;

/// Stands for the rule set of a fault that was on its node when the store was lost (`decide`,
/// adoption): no rule set can have this name.
pub(crate) const ADOPTED: &str = "<adopted>";

/// A moment and the reader's time zone (`TZ`, else the system's, else UTC).
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    now: Timestamp,
    zone: TimeZone,
}

impl Clock {
    /// Ages count from `now`.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now,
            zone: TimeZone::system(),
        }
    }

    /// `2026-09-12 03:12:04 CEST`
    pub(crate) fn local(&self, at: Timestamp) -> String {
        let zoned = at.to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
    }

    /// `8 min`, in whole seconds: the server's clock is told no finer. Nothing for what lies ahead.
    pub(crate) fn age(&self, at: Timestamp) -> String {
        whole(self.now.as_second() - at.as_second())
    }

    /// Whether this lies ahead.
    pub(crate) fn is_ahead(&self, at: Timestamp) -> bool {
        at > self.now
    }

    /// Whether it is more than that long ago.
    pub(crate) fn is_older(&self, at: Timestamp, than: SignedDuration) -> bool {
        self.now.duration_since(at) > than
    }

    /// `2026-09-12 03:12:04 CEST (in 8 min)`
    pub(crate) fn until(&self, at: Timestamp) -> String {
        let left = whole(at.as_second() - self.now.as_second());
        format!("{} (in {left})", self.local(at))
    }

    /// `2026-09-12 03:12:04 CEST (8 min ago)`
    pub(crate) fn since(&self, at: Timestamp) -> String {
        format!("{} ({} ago)", self.local(at), self.age(at))
    }
}

fn whole(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => span(SignedDuration::from_secs(seconds)),
    }
}

/// A length of time in its largest unit, or its two largest: `45 ms`, `1.2 s`, `8 min`, `3 h 5 min`,
/// `2 d 4 h`.
pub(crate) fn span(length: SignedDuration) -> String {
    let millis = length.as_millis().max(0);
    let (seconds, minutes) = (millis / 1_000, millis / 60_000);
    let (hours, days) = (minutes / 60, minutes / 1_440);
    let two = |a: i128, unit: &str, b: i128, smaller: &str| match b {
        0 => format!("{a} {unit}"),
        _ => format!("{a} {unit} {b} {smaller}"),
    };
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..10_000 => format!("{seconds}.{} s", millis % 1_000 / 100),
        10_000..60_000 => format!("{seconds} s"),
        60_000..600_000 => two(minutes, "min", seconds % 60, "s"),
        600_000..3_600_000 => format!("{minutes} min"),
        3_600_000..86_400_000 => two(hours, "h", minutes % 60, "min"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

/// `1.2 GiB`
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, size)| count >= *size);
    match unit {
        Some((name, size)) => format!("{}.{} {name}", count / size, count % size * 10 / size),
        None => format!("{count} B"),
    }
}

/// What is wrong, in a few words.
pub(crate) fn fault(fault: &api::Fault) -> String {
    let code = fault.code.as_str();
    if fault.check == checks::XID {
        let number = code.split('.').next().and_then(|code| code.parse().ok());
        let row = number.and_then(detect::xid::find);
        return match row {
            Some(row) => format!("XID {code}: {}", row.description),
            None => format!("XID {code}: an error number that this version does not know"),
        };
    }
    let words = match fault.check.as_str() {
        checks::AGENT_SILENT => "this node's agent does not report",
        checks::AGENT_CONFLICT => "several agents report as this node",
        checks::AGENT_MACHINE => "the agent runs on another machine than the node",
        checks::TOO_MANY_FAULTS => "more faults are told than a node may have open",
        "KernelLogUnreadable" => "the agent can't read the kernel log",
        "SpoolUnwritable" => "the agent can't write its spool",
        "EventsLost" => "the agent had to drop events",
        "ClockSkew" => "a sender's clock is wrong",
        _ if code.is_empty() => return fault.check.clone(),
        _ => return format!("{} {code}", fault.check),
    };
    format!("{}: {words}", fault.check)
}

/// The same with the device: `XID 79: GPU has fallen off the bus (PCI=0000:17:00)`.
pub(crate) fn fault_and_device(of: &api::Fault) -> String {
    let what = fault(of);
    match (of.device.as_str(), of.injected) {
        ("", false) => what,
        ("", true) => format!("{what} (injected)"),
        (device, false) => format!("{what} ({device})"),
        (device, true) => format!("{what} ({device}, injected)"),
    }
}

/// What of a fault was no real part, in words; empty = all was real.
pub(crate) fn origin(origin: &str) -> String {
    let mut parts: Vec<&str> = origin.split(", ").filter(|part| !part.is_empty()).collect();
    let by_user = parts.contains(&"user");
    parts.retain(|part| *part != "user");
    let line = "a program wrote the line into the kernel log, not the kernel";
    match (by_user, parts.join(", ")) {
        (true, stand_ins) if stand_ins.is_empty() => line.to_owned(),
        (true, stand_ins) => format!("{line}; stand-ins on the agent: {stand_ins}"),
        (false, stand_ins) if stand_ins.is_empty() => stand_ins,
        (false, stand_ins) => format!("stand-ins on the agent: {stand_ins}"),
    }
}

/// Whether a fault says that the node's agent can't be taken at its word, for this reason.
pub(crate) fn is_doubt(fault: &api::Fault, check: &str) -> bool {
    fault.agent == checks::WARDEN_AGENT && fault.check == check
}

/// Whether one of these does, for whatever reason.
pub(crate) fn is_doubted(faults: &[api::Fault]) -> bool {
    let checks = [checks::AGENT_CONFLICT, checks::AGENT_MACHINE];
    let mut faults = faults.iter();
    faults.any(|fault| checks.iter().any(|check| is_doubt(fault, check)))
}

/// What a sender asks for, in a few words, with the name on the wire.
pub(crate) fn action(fault: &api::Fault) -> String {
    let name = fault.action.as_str();
    let words = match name {
        "NONE" => "nothing",
        "COMPONENT_RESET" => "reset the part",
        "CONTACT_SUPPORT" => "a person must look at it",
        "RUN_FIELDDIAG" => "run the field diagnostic",
        "RUN_DCGMEUD" => "run DCGM's end-user diagnostic",
        "RESTART_VM" => "restart the virtual machine",
        "RESTART_BM" => "reboot the machine",
        "REPLACE_VM" => "replace the virtual machine",
        "UNKNOWN" => "the sender does not know",
        _ if !fault.custom_action.is_empty() => {
            return format!("{} (a repair of this site, {name})", fault.custom_action);
        }
        _ => return format!("{name} (a repair of this site)"),
    };
    format!("{words} ({name})")
}

/// How a fault comes to an end.
pub(crate) fn end(fault: &api::Fault) -> &'static str {
    match checks::cleared_by(&fault.agent, &fault.check) {
        ClearedBy::Reboot => "ends with a reboot after which it is not found again",
        ClearedBy::Reading => "ends when its check reads that all is well",
        ClearedBy::Either => "ends when its check reads that all is well, or with a reboot",
    }
}

/// Why a fault closed, by the name of the cause.
pub(crate) fn closing(cause: &str) -> &str {
    match CloseCause::from_stored(cause) {
        Some(CloseCause::Recovered) => "its check read that all is well",
        Some(CloseCause::Reboot) => "not found again after a reboot",
        Some(CloseCause::NoLongerAsserted) => "the agent no longer asserts it",
        Some(CloseCause::Person) => "a person closed it",
        Some(CloseCause::RetiredCheck) => "its check is no more (ingest.retired_checks)",
        Some(CloseCause::NodeReplaced) => "another machine has the node's name (node replaced)",
        Some(CloseCause::NodeDeleted) => "its node is gone (node deleted)",
        Some(CloseCause::Merged) => "found to be another fault",
        None => cause,
    }
}

/// What a state means for the node.
pub(crate) fn state(name: &str) -> &str {
    match name {
        "Withheld" => "should be out of service, but is withheld",
        "Observed" => "has faults, but is only observed",
        "Applying" => "is being taken out of service",
        "Quarantined" => "is out of service",
        "Releasing" => "is being given back",
        "Closed" => "is in service again",
        other => other,
    }
}

/// Whoever asked the controller for something.
pub(crate) fn actor(name: &str) -> &str {
    match name {
        // What the controller calls the holder of the token in its own folder.
        "local" => "somebody with the controller's local token",
        other => other,
    }
}

/// The same with why, as the controller keeps both in one: `ann (the fan is new)`.
pub(crate) fn actor_and_why(name: &str) -> String {
    match name.split_once(" (") {
        Some((who, why)) => format!("{} ({why}", actor(who)),
        None => actor(name).to_owned(),
    }
}

/// Who holds a node, and why, as the controller keeps both in one: `ann (the fan is loud)`.
pub(crate) fn holder(held_by: &str) -> String {
    match held_by.split_once(": ") {
        Some((who, why)) => format!("{} ({why})", actor(who)),
        None => actor(held_by).to_owned(),
    }
}

/// How an incident ended.
pub(crate) fn ending(incident: &api::Incident) -> &str {
    match incident.detail.as_str() {
        "Recovered" if incident.faults.is_empty() => "the hold was ended, and no fault was open",
        "Recovered" => "all its faults ended",
        "ManualUncordon" => "a person uncordoned the node",
        "ManualUntaint" => "a person removed a taint of Warden's",
        "NodeDeleted" => "the node was deleted or replaced",
        "CancelledByPerson" => "a person ended it",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_whole_seconds_and_nothing_for_what_lies_ahead() {
        let clock = Clock::new("2026-09-12T01:20:30Z".parse().unwrap());
        let table = [
            ("2026-09-12T01:20:30Z", "0 s"),
            ("2026-09-12T01:20:30.999Z", "0 s"),
            ("2026-09-12T01:20:29.999Z", "1 s"),
            ("2026-09-12T01:20:25.001Z", "5 s"),
            ("2026-09-12T01:19:31Z", "59 s"),
            ("2026-09-12T01:12:05.5Z", "8 min 25 s"),
            ("2026-09-12T02:00:00Z", "0 s"),
        ];
        for (at, want) in table {
            assert_eq!(clock.age(at.parse().unwrap()), want, "{at}");
        }
    }

    #[test]
    fn a_span_is_told_in_its_largest_units() {
        let table = [
            (-5, "0 ms"),
            (45, "45 ms"),
            (1_250, "1.2 s"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (505_000, "8 min 25 s"),
            (3_599_000, "59 min"),
            (11_100_000, "3 h 5 min"),
            (86_400_000, "1 d"),
            (187_200_000, "2 d 4 h"),
        ];
        for (millis, want) in table {
            assert_eq!(span(SignedDuration::from_millis(millis)), want);
        }
    }

    #[test]
    fn bytes_are_told_in_their_largest_unit() {
        let table = [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
        ];
        for (count, want) in table {
            assert_eq!(bytes(count), want);
        }
        assert_eq!(bytes(u64::MAX), "17179869183.9 GiB");
    }
}
