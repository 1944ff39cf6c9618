//! What Warden does on its own under a configuration, in plain words.

use decide::drain::AtDeadline;

use super::{Config, JanitorConfig};

/// What acts, from weak to strong, in one line; what is switched on and can't act is not in it.
pub(super) fn acts(config: &Config) -> String {
    let Config {
        ingest,
        connector,
        quarantine,
        drain,
        remediation,
        janitor,
        ..
    } = config;
    let takes_out = quarantine.enabled && !quarantine.dry_run;
    let drains = takes_out && drain.enabled && !drain.dry_run;
    let orders = takes_out && remediation.enabled && !remediation.dry_run;
    let mut acts: Vec<String> = Vec::new();
    let mut act = |text: &str| acts.push(text.to_owned());
    if !ingest.enabled {
        act("takes nothing in (ingest.enabled is false): no fault is ever found");
    }
    match (
        connector.enabled && connector.conditions,
        connector.enabled && connector.events,
    ) {
        (true, true) => act("writes node conditions and Events"),
        (true, false) => act("writes node conditions"),
        (false, true) => act("writes node Events"),
        (false, false) => {}
    }
    if takes_out {
        act("cordons and taints nodes");
    } else if quarantine.enabled {
        act("shows which nodes it would take out, and takes out none (dry run)");
    }
    if drains {
        act(match drain.at_deadline {
            AtDeadline::Fail => {
                "evicts their pods, and calls a person for those left at a deadline"
            }
            AtDeadline::Delete => {
                "evicts their pods, and deletes those left at a deadline past their budgets"
            }
        });
    } else if takes_out && drain.enabled {
        act("shows which pods it would evict (dry run)");
    }
    if orders && (drains || remediation.without_drain) {
        act("orders reboots");
    } else if orders {
        act("orders reboots of nodes whose faults all say to skip the drain");
    } else if takes_out && remediation.enabled {
        act("shows which reboots it would order (dry run)");
    }
    let carried = carried_out(janitor, orders);
    let all = acts.into_iter().chain(carried).collect::<Vec<_>>();
    if all.is_empty() {
        "nothing: it only stores and shows".to_owned()
    } else {
        all.join("; ")
    }
}

/// Who carries reboots out.
fn carried_out(janitor: &JanitorConfig, orders: bool) -> Option<String> {
    let host = &janitor.provider.host;
    match (janitor.enabled, janitor.manual) {
        (true, false) => Some(format!(
            "carries out every RebootNode, also a person's, through {host}"
        )),
        (true, true) => Some(
            "takes each RebootNode up, and leaves the signal to a person (janitor.manualMode)"
                .to_owned(),
        ),
        (false, _) if orders => {
            Some("carries none out (janitor.enabled is false): another janitor has to".to_owned())
        }
        (false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_profile_and_each_switch_is_told_in_plain_words() {
        const WATCHES: &str = "writes node conditions and Events; shows which nodes it would take out, \
                               and takes out none (dry run)";
        const CORDONS: &str = "writes node conditions and Events; cordons and taints nodes";
        const FAILS: &str = "evicts their pods, and calls a person for those left at a deadline";
        const DELETES: &str =
            "evicts their pods, and deletes those left at a deadline past their budgets";
        const THROUGH: &str = "carries out every RebootNode, also a person's, through";
        const BY_HAND: &str =
            "takes each RebootNode up, and leaves the signal to a person (janitor.manualMode)";
        const PROVIDER: &str = "janitor-provider.nvsentinel.svc.cluster.local:50051";
        let all = format!("{CORDONS}; {FAILS}; orders reboots; {THROUGH} {PROVIDER}");
        let table: [(&str, &str); 14] = [
            ("profile = 'silent'", "nothing: it only stores and shows"),
            ("", WATCHES),
            ("profile = 'cordon'", CORDONS),
            ("profile = 'drain'", &format!("{CORDONS}; {FAILS}")),
            ("profile = 'remediate'", &all),
            (
                "[drain]\nenabled = true\n[remediation]\nenabled = true",
                WATCHES,
            ),
            (
                "profile = 'cordon'\n[drain]\nenabled = true\n[remediation]\nenabled = true",
                &format!(
                    "{CORDONS}; shows which pods it would evict (dry run); shows which reboots it would \
                     order (dry run)"
                ),
            ),
            (
                "profile = 'drain'\n[drain]\nat_deadline = 'delete'",
                &format!("{CORDONS}; {DELETES}"),
            ),
            (
                "profile = 'remediate'\n[drain]\nenabled = false\n[janitor]\nenabled = false",
                &format!(
                    "{CORDONS}; orders reboots of nodes whose faults all say to skip the drain; carries none \
                     out (janitor.enabled is false): another janitor has to"
                ),
            ),
            (
                "profile = 'remediate'\n[drain]\nenabled = false\n[remediation]\nwithout_drain = true\n\
                 [janitor]\nmanualMode = true",
                &format!("{CORDONS}; orders reboots; {BY_HAND}"),
            ),
            (
                "profile = 'remediate'\n[quarantine]\ndry_run = true",
                &format!("{WATCHES}; {THROUGH} {PROVIDER}"),
            ),
            (
                "profile = 'remediate'\n[janitor]\ncspProviderHost = 'cloud:1'",
                &format!("{CORDONS}; {FAILS}; orders reboots; {THROUGH} cloud:1"),
            ),
            (
                "[ingest]\nenabled = false\n[connector]\nevents = false\n[quarantine]\nenabled = false",
                "takes nothing in (ingest.enabled is false): no fault is ever found; writes node conditions",
            ),
            (
                "profile = 'cordon'\n[connector]\nconditions = false",
                "writes node Events; cordons and taints nodes",
            ),
        ];
        for (text, want) in table {
            assert_eq!(Config::parse(text).unwrap().acts(), want, "{text}");
        }
    }
}
