use super::*;

fn problems(text: &str) -> Vec<String> {
    match Config::parse(text) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Syntax(why)) => vec![why],
        Err(error @ ConfigError::TooLarge) => vec![error.to_string()],
        Err(ConfigError::Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn nothing_given_is_the_observing_profile() {
    let config = Config::default();
    assert_eq!(config.profile, Profile::Observe);
    assert!(config.connector.enabled && config.quarantine.enabled && config.quarantine.dry_run);
    assert_eq!(config.ingest.mode, TrustMode::Enforce);
    assert_eq!(
        config.ingest.agents[0].user_name(),
        "system:serviceaccount:warden:warden-agent"
    );
}

#[test]
fn a_reboot_clears_the_references_kernel_log_checks_unless_told_otherwise() {
    let clears = |text: &str| {
        let config = Config::parse(text).unwrap().ingest;
        assert!(config.retired_checks.is_empty());
        let name = |listed: CheckRef| format!("{}/{}", listed.agent, listed.check);
        config
            .reboot_clears
            .into_iter()
            .map(name)
            .collect::<Vec<_>>()
    };
    let by_reboot = |check: &&health_event::checks::Check| {
        check.agent == health_event::checks::SYSLOG_AGENT
            && check.cleared_by == health_event::checks::ClearedBy::Reboot
    };
    let known: Vec<String> = health_event::checks::CHECKS
        .iter()
        .filter(by_reboot)
        .map(|check| format!("{}/{}", check.agent, check.name))
        .collect();
    assert_eq!(clears(""), known);
    assert!(clears("[ingest]\nreboot_clears = []").is_empty());
    let own = "[ingest]\nreboot_clears = ['my-monitor/MyCheck']";
    assert_eq!(clears(own), ["my-monitor/MyCheck"]);
    for bad in ["NoAgent", "/Check", "agent/", "a/b/c"] {
        let text = format!("[ingest]\nretired_checks = [{bad:?}]");
        let found = problems(&text);
        assert!(
            found[0].contains("allowed is a list of AGENT/CHECK"),
            "{found:?}"
        );
    }
}

#[test]
fn a_profile_sets_what_the_modules_do() {
    let table = [
        ("silent", false, false, true),
        ("observe", true, true, true),
        ("cordon", true, true, false),
    ];
    for (profile, connector, quarantine, dry_run) in table {
        let config = Config::parse(&format!("profile = {profile:?}")).unwrap();
        assert_eq!(config.connector.enabled, connector, "{profile}");
        assert_eq!(config.quarantine.enabled, quarantine, "{profile}");
        assert_eq!(config.quarantine.dry_run, dry_run, "{profile}");
    }
    let off = "profile = 'cordon'\n[connector]\nenabled = false\n[quarantine]\nenabled = false";
    let config = Config::parse(off).unwrap();
    assert!(!config.connector.enabled && !config.quarantine.enabled);
}

#[test]
fn a_number_that_64_bits_do_not_hold_is_told_with_place_key_and_what_is_allowed() {
    let text = "profile = 'cordon'\n[quarantine]\nworkers = 99_999_999_999_999_999_999 # ü\n\
                protected_nodes = ['a', -99999999999999999999]\n\
                [store]\nreserve = 9223372036854775808\nmax_age = 1e999\n[surprise]\nx = 0xffffffffffffffffff\n\
                [log]\nlevel = 5";
    let found = problems(text);
    for want in [
        "quarantine.workers = 99_999_999_999_999_999_999: allowed is a number from 1 to 1024 (line 3, \
         column 11)",
        "quarantine.protected_nodes[1] = -99999999999999999999: allowed is a number from \
         -9223372036854775808 to 9223372036854775807 (line 4, column 25)",
        "store.reserve = 9223372036854775808: allowed is a number from -9223372036854775808 to \
         9223372036854775807 (line 6, column 11)",
        "store.max_age = 1e999: allowed is a span from 1h to ",
        "surprise.x = 0xffffffffffffffffff: allowed is ",
        "log.level = 5: allowed is ",
    ] {
        assert!(
            found.iter().any(|line| line.starts_with(want)),
            "{want:?} in {found:#?}"
        );
    }
    // A prefix without a digit.
    let bare = problems("[quarantine]\nworkers = 0o");
    assert_eq!(
        bare,
        ["quarantine.workers = 0o: allowed is a number from 1 to 1024 (line 2, column 11)"]
    );
    // Where the text is no TOML either, that is told first.
    let both = problems("a = 99999999999999999999\nb = = 1");
    assert!(both[0].contains("line 2"), "{both:?}");
}

#[test]
fn a_configuration_that_is_too_large_is_refused_before_it_is_read() {
    let line = "# a comment\n";
    let text = line.repeat(LARGEST / line.len());
    Config::parse(&text).unwrap();
    let error = Config::parse(&line.repeat(LARGEST / line.len() + 1)).unwrap_err();
    assert_eq!(
        (&error, error.code()),
        (&ConfigError::TooLarge, "config_too_large")
    );
    assert!(
        error.to_string().contains("more than 1048576 bytes"),
        "{error}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ü".repeat(LARGEST)).unwrap();
    let text = read(file.path()).unwrap();
    assert_eq!(Config::parse(&text).unwrap_err(), ConfigError::TooLarge);
}

#[test]
fn every_fault_is_reported_with_key_value_and_allowed_form() {
    let text = r#"
        profile = "everything"
        surprise = 1
        [ingest]
        mode = "maybe"
        listen = "nowhere"
        agents = ["no-slash"]
        [ingest.tls]
        certificate_file = "/c"
        [store]
        max_age = "2 weeks"
        reserve = -1
        [lease]
        duration = "1s"
        [quarantine.circuitBreaker]
        percentage = 0
        duration = "0s"
        treshold = 5
        percentge = 5
        [[quarantine.rule-sets]]
        name = "r"
        match.all = [{ kind = "Pod", expression = "" }]
        [[quarantine.rule-sets]]
        name = "r"
        [quarantine.rule-sets.taint]
        key = "k"
    "#;
    let found = problems(text);
    for want in [
        r#"profile = "everything": allowed is silent, observe, cordon, drain or remediate"#,
        "surprise = 1: allowed is no such key; keys here are api, connector,",
        r#"ingest.mode = "maybe": allowed is enforce, audit or off"#,
        r#"ingest.listen = "nowhere": allowed is ADDRESS:PORT"#,
        r#"ingest.agents = ["no-slash"]: allowed is a list of NAMESPACE/NAME"#,
        r#"ingest.tls.key_file = "": allowed is both"#,
        r#"store.max_age = "2 weeks": allowed is a span from 1h to 3650d, in quotes and with units (ms, s, m, h, d), for example "12h" or "14d""#,
        "store.reserve = -1: allowed is a number of bytes",
        r#"lease.duration = "1s": allowed is a span from 3s"#,
        "quarantine.circuitBreaker.percentage = 0: allowed is a number from 1 to 100",
        r#"quarantine.circuitBreaker.duration = "0s": allowed"#,
        "quarantine.circuitBreaker.treshold = 5: allowed is no such key; keys here are auto_resume,",
        "quarantine.circuitBreaker.percentge = 5: allowed is no such key; did you mean percentage?; keys here",
        r#"quarantine.rule-sets[0].match.all[0].kind = "Pod": allowed is HealthEvent or Node"#,
        r#"quarantine.rule-sets[0].match.all[0].expression = "": allowed is a text"#,
        r#"quarantine.rule-sets[1].match = "{}": allowed is at least one rule"#,
        r#"quarantine.rule-sets[1].taint.effect = "": allowed is NoSchedule"#,
        r#"quarantine.rule-sets = "r": allowed is unique names"#,
    ] {
        assert!(
            found.iter().any(|line| line.starts_with(want)),
            "{want}\n{found:#?}"
        );
    }
    assert_eq!(found.len(), 18, "{found:#?}");
}

#[test]
fn a_bad_span_is_told_with_the_form_and_examples_that_would_be_taken() {
    for (key, value, examples) in [
        (
            "drain.immediate_deadline",
            "90",
            r#"for example "90s" or "5m""#,
        ),
        (
            "drain.immediate_deadline",
            "'90'",
            r#"for example "90s" or "5m""#,
        ),
        (
            "drain.immediate_deadline",
            "'5 min'",
            r#"for example "90s" or "5m""#,
        ),
        (
            "store.max_age",
            "'2 weeks'",
            r#"for example "12h" or "14d""#,
        ),
        ("lease.duration", "''", r#"for example "90s" or "5m""#),
    ] {
        let found = problems(&format!("{key} = {value}"));
        let [line] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(line.ends_with(examples), "{line}");
        assert!(line.contains("units (ms, s, m, h, d)"), "{line}");
    }
    // In the right form, and too long or too short, only the bounds are of use.
    let found = problems("drain.immediate_deadline = '31d'");
    assert_eq!(
        found,
        [r#"drain.immediate_deadline = "31d": allowed is a span from 1s to 30d"#]
    );
}

#[test]
fn a_rung_that_is_no_action_is_told_with_those_that_are() {
    let found = problems("[remediation]\nladder = ['RESTART_BMC', 'REBOOT']");
    let actions =
        "an action of remediation.remediationActions (COMPONENT_RESET, RESTART_BM, RESTART_VM)";
    let want = [
        format!(
            r#"remediation.ladder = "RESTART_BMC": allowed is {actions}; did you mean RESTART_BM?"#
        ),
        format!(r#"remediation.ladder = "REBOOT": allowed is {actions}"#),
    ];
    assert_eq!(found, want);
    let none = problems("[remediation]\nladder = ['RESTART_BM']\nremediationActions = {}");
    assert_eq!(
        none,
        [
            r#"remediation.ladder = "RESTART_BM": allowed is no rung: remediation.remediationActions has no action"#
        ]
    );
}

#[test]
fn what_contradicts_the_profile_or_the_mode_is_refused() {
    let table = [
        (
            "profile = 'silent'\n[connector]\nenabled = true",
            "connector.enabled = true",
        ),
        (
            "[quarantine]\ndry_run = false",
            "quarantine.dry_run = false",
        ),
        (
            "[ingest]\nmode = 'off'",
            "ingest.listen = \"0.0.0.0:9440\": allowed is a loopback",
        ),
    ];
    for (text, want) in table {
        let found = problems(text);
        assert!(found[0].starts_with(want), "{found:?}");
    }
    assert!(problems("[ingest]\nmode = 'off'\nlisten = '127.0.0.1:9440'").is_empty());
}

#[test]
fn no_toml_is_refused_with_its_line() {
    let found = problems("profile = observe");
    assert!(found[0].contains("line 1"), "{found:?}");
}

#[test]
fn every_key_that_stands_twice_is_told_at_once() {
    let text = "profile = 'silent'\nprofile = 'observe'\n[store]\npath = '/a'\npath = '/b'";
    let found = &problems(text)[0];
    for line in ["line 2, column 1", "line 5, column 1"] {
        assert!(found.contains(line), "{found}");
    }
    assert_eq!(found.matches("duplicate key").count(), 2, "{found}");
    assert!(problems(&"a = 1\n".repeat(100_000))[0].len() < 20_000);
}

#[test]
fn one_fault_is_no_plural() {
    let said = |text: &str| Config::parse(text).unwrap_err().to_string();
    assert!(said("a = 1").starts_with("the configuration has 1 fault:\n"));
    assert!(said("a = 1\nb = 1").starts_with("the configuration has 2 faults:\n"));
}

#[test]
fn the_references_rule_sets_are_read() {
    let text = r#"
        [quarantine]
        label-prefix = "k8saas.nvidia.com/"
        [quarantine.circuitBreaker]
        percentage = 30
        duration = "10m"
        [[quarantine.rule-sets]]
        enabled = true
        version = "1"
        name = "GPU fatal error ruleset"
        priority = 100
        [[quarantine.rule-sets.match.all]]
        kind = "HealthEvent"
        expression = "event.agent == 'gpu-health-monitor' && event.isFatal"
        [[quarantine.rule-sets.match.all]]
        kind = "Node"
        expression = '''
        !('k8saas.nvidia.com/ManagedByNVSentinel' in node.metadata.labels)
        '''
        [quarantine.rule-sets.taint]
        key = "AggregatedNodeHealth"
        value = "False"
        effect = "NoSchedule"
        [quarantine.rule-sets.cordon]
        shouldCordon = true
    "#;
    let config = Config::parse(text).unwrap();
    let set = &config.quarantine.rule_sets[0];
    assert_eq!(set.name, "GPU fatal error ruleset");
    assert_eq!((set.all.len(), set.any.len(), set.cordon), (2, 0, true));
    assert_eq!(set.all[1].kind, RuleKind::Node);
    assert_eq!(set.taint.as_ref().unwrap().effect, "NoSchedule");
    assert_eq!(config.quarantine.breaker.rate_percentage, 30);
    assert_eq!(
        config.quarantine.breaker.window,
        std::time::Duration::from_mins(10)
    );
}

#[test]
fn the_effective_configuration_reads_back_as_itself() {
    let given = "profile = 'cordon'\n[quarantine]\nfirst_action_delay = '0s'";
    let config = Config::parse(given).unwrap();
    let effective = config.effective();
    assert!(
        effective.contains("quarantine.first_action_delay = \"0s\"\n"),
        "{effective}"
    );
    assert!(
        effective.contains("ingest.mode = \"enforce\"\n"),
        "{effective}"
    );
    let again = Config::parse(&effective).unwrap();
    assert_eq!(again.effective(), effective);
}

mod any_text {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[a-z=.\\[\\]\"'0-9 \n-]{0,200}") {
            let _ = Config::parse(&text);
        }

        #[test]
        fn no_value_of_a_known_key_makes_the_reader_panic(
            index in 0..60_usize,
            value in prop_oneof![
                Just("true".to_owned()), Just("-1".to_owned()), Just("1e300".to_owned()),
                Just("[]".to_owned()), Just("[[1]]".to_owned()), Just("{}".to_owned()),
                Just("9223372036854775807".to_owned()), Just("1979-05-27".to_owned()),
                "'[0-9a-zA-Z:/.]{0,30}'",
            ],
        ) {
            let config = Config::default();
            let keys = config.keys();
            let key = &keys[index % keys.len()].key;
            let _ = Config::parse(&format!("{key} = {value}"));
        }
    }
}

#[test]
fn the_references_dedup_keys_are_read() {
    let text = "[dedup]\nsuppressionWindow = '3m'\ncleanupInterval = '60s'\n\
                includeChecks = ['SysLogsXIDError']";
    let dedup = Config::parse(text).unwrap().dedup;
    assert_eq!(dedup.window, std::time::Duration::from_mins(3));
    assert_eq!(dedup.checks, Some(vec!["SysLogsXIDError".to_owned()]));
    assert_eq!(Config::parse("").unwrap().dedup.checks, None);
}

#[test]
fn a_key_of_which_nothing_is_to_be_seen_is_named() {
    let found = problems("'' = 1");
    assert!(
        found[0].starts_with("\"\" = 1: allowed is no such key"),
        "{found:?}"
    );
}

#[test]
fn every_key_that_the_reader_takes_is_told_with_its_meaning() {
    let findings = Findings::default();
    Config::read(Section::root(toml::Table::new(), &findings));
    let (keys, shapes) = (findings.keys.take(), findings.shapes.take());
    let told: Vec<&str> = keys.iter().chain(&shapes).map(|k| k.key.as_str()).collect();
    let asked = findings.asked.take();
    assert!(
        asked
            .iter()
            .any(|key| key == "quarantine.rule-sets[].match.all[].kind")
    );
    for key in asked {
        let holds = |told: &&&str| {
            told.strip_prefix(key.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        assert!(
            told.iter().any(|told| holds(&told)),
            "{key} is told nowhere"
        );
    }
    for key in keys.iter().chain(&shapes) {
        assert!(
            !key.help.is_empty() && !key.allowed.is_empty(),
            "{}",
            key.key
        );
    }
}

#[test]
fn what_the_api_server_would_refuse_with_each_write_is_refused_at_the_start() {
    let long = "x".repeat(64);
    let domain = format!("{}.io/", vec!["x".repeat(60); 5].join("."));
    let set = "[[quarantine.rule-sets]]\nname = 'r'\n\
               match.all = [{ kind = 'HealthEvent', expression = 'true' }]\n\
               [quarantine.rule-sets.taint]\neffect = 'NoSchedule'\n";
    let forms: [(&str, String, &[&str], &[&str]); 8] = [
        (
            "quarantine.label-prefix",
            "[quarantine]\nlabel-prefix = ".to_owned(),
            &["k8saas.nvidia.com/", "", "acme/"],
            &[
                "acme.io",
                "Acme.io/",
                "acme.io//",
                "/",
                "-",
                "a b/",
                "acme.io/w-",
                &domain,
                &long,
            ],
        ),
        (
            "quarantine.cooperators[0].key",
            "[[quarantine.cooperators]]\nkey = ".to_owned(),
            &["nvidia.com/gpu-driver-upgrade-state", "plain", "A_b.c"],
            &[
                "",
                "nvidia.com/",
                "Nvidia.com/x",
                "a/b/c",
                "-a",
                "a-",
                "a b",
                "é",
                &long,
            ],
        ),
        (
            "quarantine.circuitBreaker.pools[0].label",
            "[[quarantine.circuitBreaker.pools]]\nname = 'p'\nlabel = ".to_owned(),
            &["acme.io/pool", "pool"],
            &["", "acme.io/", "a/b/c", "pool=x", &long],
        ),
        (
            "quarantine.circuitBreaker.pools[0].value",
            "[[quarantine.circuitBreaker.pools]]\nname = 'p'\nlabel = 'l'\nvalue = ".to_owned(),
            &["", "a", "A_b-c.9"],
            &["a/b", "a b", "-a", "a.", &long],
        ),
        (
            "quarantine.rule-sets[0].taint.key",
            format!("{set}key = "),
            &["", "AggregatedNodeHealth", "acme.io/bad"],
            &["acme.io/", "a=b", "a:b", "a/b/c", "_a", &long],
        ),
        (
            "quarantine.rule-sets[0].taint.value",
            format!("{set}key = 'k'\nvalue = "),
            &["", "False"],
            &["a/b", "a b", "a:NoSchedule", &long],
        ),
        (
            "kubernetes.namespace",
            "[kubernetes]\nnamespace = ".to_owned(),
            &["", "warden"],
            &["Warden", "a.b", "a/b", "-a", &long],
        ),
        (
            "lease.name",
            "[lease]\nname = ".to_owned(),
            &["warden-controller", "a.b"],
            &["", "Warden", "a/b", "a."],
        ),
    ];
    for (key, text, good, bad) in forms {
        for value in good {
            let found = problems(&format!("{text}{value:?}"));
            assert!(found.is_empty(), "{key} = {value:?}: {found:?}");
        }
        for value in bad {
            let found = problems(&format!("{text}{value:?}"));
            let told = found
                .iter()
                .any(|line| line.starts_with(&format!("{key} = ")));
            assert!(told, "{key} = {value:?} passes: {found:?}");
        }
    }
}

#[test]
fn what_this_version_does_not_do_and_what_would_check_nothing_is_refused() {
    let table = [
        (
            "[quarantine]\ncooperator_policy = 'never'",
            "quarantine.cooperator_policy = \"never\": allowed is taint, reassert or yield",
        ),
        (
            "[ingest]\naudiences = []",
            "ingest.audiences = []: allowed is a list of at least one text",
        ),
        (
            "[ingest]\naudiences = ['']",
            "ingest.audiences = [\"\"]: allowed is a list of at least one text",
        ),
    ];
    for (text, want) in table {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].starts_with(want), "{found:?}");
    }
}
