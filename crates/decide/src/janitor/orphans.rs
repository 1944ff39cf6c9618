//! Signals whose object is gone: deleted by a person, or along with the node object that owned it.

use health_event::BootId;
use jiff::Timestamp;

use super::{Intent, Policy};

/// Whether a signal may have its effect still of which nothing is left but the stored intent: until the
/// machine is seen in another boot, or the time of its object would be over. Until then no other repair
/// of the machine begins. `shown` is the boot of the node; `None`: the node is not there.
pub fn runs_without_object(
    intent: &Intent,
    shown: Option<&BootId>,
    policy: &Policy,
    now: Timestamp,
) -> bool {
    let known = |boot: &&BootId| !boot.is_unknown() && !intent.boot_before.is_unknown();
    let rebooted = shown
        .filter(known)
        .is_some_and(|boot| *boot != intent.boot_before);
    !rebooted && now < super::until(intent, policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{MINUTE, at};

    #[test]
    fn a_signal_whose_object_is_gone_runs_until_its_time_is_over_or_another_boot_is_seen() {
        let policy = Policy {
            timeout: MINUTE * 25,
            queue_timeout: MINUTE * 360,
            no_reboot_after: MINUTE * 10,
            ask_interval: MINUTE,
            manual: false,
        };
        let intent = Intent {
            boot_before: BootId::new("b1"),
            at: at(1),
            deadline: at(26),
            fresh: false,
            manual: false,
        };
        let runs = |shown: Option<&str>, minute| {
            let shown = shown.map(BootId::new);
            runs_without_object(&intent, shown.as_ref(), &policy, at(minute))
        };
        for shown in [Some("b1"), Some(""), None] {
            assert!(runs(shown, 25), "{shown:?}");
            assert!(!runs(shown, 26), "{shown:?}");
        }
        assert!(!runs(Some("b2"), 2));
    }
}
