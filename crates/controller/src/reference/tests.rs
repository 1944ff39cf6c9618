//! The files as the reference ships them (quarantine 2 and 4; drain-and-remediation 2.2, 4.2;
//! janitor-and-preflight 1.11; ingest-and-store 2.1, 2.3), and as sites write them.

use decide::rules::shipped;

use super::*;

fn of(text: &str) -> Translation {
    translate(text).unwrap_or_else(|| panic!("no file of the reference: {text}"))
}

/// The result is a configuration of ours; answers it as a table.
fn good(text: &str) -> (Translation, Table) {
    let translation = of(text);
    assert_eq!(translation.problems, [], "{}", translation.toml);
    let (_, problems) = crate::config::Config::parse_all(&translation.toml).unwrap();
    assert_eq!(problems, []);
    let table = translation.toml.parse().unwrap();
    (translation, table)
}

fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (last, tables) = path.split_last().unwrap();
    let table = tables
        .iter()
        .try_fold(table, |table, key| table.get(*key)?.as_table())?;
    table.get(*last)
}

fn why<'a>(list: &'a [Told], key: &str) -> &'a str {
    let told = list.iter().find(|told| told.key == key);
    &told
        .unwrap_or_else(|| panic!("{key} is not in {list:#?}"))
        .why
}

/// One of the six, as the chart's template writes it.
fn chart_set(name: &str, expression: &str) -> String {
    format!(
        "[[rule-sets]]\nenabled = true\nversion = \"1\"\nname = \"{name}\"\n\
         [[rule-sets.match.all]]\nkind = \"HealthEvent\"\nexpression = \"{expression}\"\n\
         [[rule-sets.match.all]]\nkind = \"Node\"\nexpression = '''\n\
         !('k8saas.nvidia.com/ManagedByNVSentinel' in node.metadata.labels && \
         node.metadata.labels['k8saas.nvidia.com/ManagedByNVSentinel'] == \"false\")'''\n\
         [rule-sets.cordon]\nshouldCordon = true\n"
    )
}

/// fault-quarantine's file of the chart's defaults.
fn chart() -> String {
    let mut text = "label-prefix = \"k8saas.nvidia.com/\"\n[circuitBreaker]\npercentage = 50\n\
                    duration = \"5m\"\n"
        .to_owned();
    for set in shipped().iter().filter(|set| set.enabled) {
        text += &chart_set(&set.name, &set.all[0].expression);
    }
    text
}

#[test]
fn the_chart_s_fault_quarantine_is_what_warden_ships() {
    let (told, ours) = good(&chart());
    assert_eq!(told.file, "NVSentinel's fault-quarantine's config.toml");
    assert_eq!(at(&ours, &["profile"]).unwrap().as_str(), Some("cordon"));
    let quarantine = ours["quarantine"].as_table().unwrap();
    assert!(!quarantine.contains_key("rule-sets") && !quarantine.contains_key("shipped_off"));
    let breaker = at(&ours, &["quarantine", "circuitBreaker"]).unwrap();
    assert_eq!(breaker["percentage"].as_integer(), Some(50));
    assert_eq!(breaker["level_percentage"].as_integer(), Some(100));
    assert_eq!(told.left, []);
    assert_eq!(told.taken.len(), 9, "{:?}", told.taken);
    assert_eq!(told.changed.len(), 1);
}

#[test]
fn a_site_s_rule_sets_are_written_out_and_what_is_not_in_the_file_is_off() {
    let text = r#"
        [circuitBreaker]
        percentage = 20
        duration = "10m"
        surprise = 1
        [[rule-sets]]
        name = "Basic-Match-Rule"
        enabled = true
        [[rule-sets.match.all]]
        kind = "HealthEvent"
        expression = "event.agent == 'gpu-health-monitor' && event.checkName == 'GpuXidError'"
        [rule-sets.taint]
        key = "AggregatedNodeHealth"
        value = "False"
        effect = "NoSchedule"
        [rule-sets.cordon]
        shouldCordon = true
        [[rule-sets]]
        name = "GPU fatal error ruleset"
        enabled = true
        [[rule-sets.match.any]]
        kind = "HealthEvent"
        expression = "event.isFatal"
        [[rule-sets]]
        name = "not told"
        [[rule-sets.match.any]]
        kind = "HealthEvent"
        expression = "event.isFatal"
        [[rule-sets]]
        name = "never"
        enabled = true
    "#;
    let (told, ours) = good(text);
    let quarantine = ours["quarantine"].as_table().unwrap();
    assert_eq!(quarantine["label-prefix"].as_str(), Some(""));
    let sets = quarantine["rule-sets"].as_array().unwrap();
    let named = |set: &Value| {
        let on = set["enabled"].as_bool().unwrap();
        (set["name"].as_str().unwrap().to_owned(), on)
    };
    let named: Vec<(String, bool)> = sets.iter().map(named).collect();
    let want = [
        ("Basic-Match-Rule", true),
        ("GPU fatal error ruleset (own)", true),
        ("not told", false),
    ];
    assert_eq!(named, want.map(|(name, on)| (name.to_owned(), on)));
    assert_eq!(quarantine["shipped_off"].as_array().unwrap().len(), 6);
    assert!(why(&told.changed, "label-prefix").contains("no prefix"));
    assert!(why(&told.changed, "rule-sets[1]").contains("differs"));
    assert!(why(&told.changed, "rule-sets[2].enabled").contains("off there"));
    assert!(why(&told.left, "rule-sets[3]").contains("never matches"));
    assert!(why(&told.left, "circuitBreaker.surprise").contains("no such key"));
    // What Warden does not take is told in its own keys.
    let bad = of(&chart_set("x", "event.nonsense == 'y'"));
    let problem = &bad.problems[0];
    assert_eq!(
        problem.key,
        "quarantine.rule-sets[0].match.all[0].expression"
    );
    assert!(problem.allowed.contains("nonsense"), "{problem:?}");
}

#[test]
fn node_drainer_s_file_is_taken_and_plugins_and_partial_drains_are_left() {
    let chart = r#"
        evictionTimeoutInSeconds = "60"
        systemNamespaces = "^(nvsentinel|kube-system|gpu-operator|gmp-system|network-operator|skyhook)$"
        deleteAfterTimeoutMinutes = 60
        notReadyTimeoutMinutes = 5
        drainGPUPods = false
        partialDrainEnabled = false
        [[userNamespaces]]
        name = "*"
        mode = "AllowCompletion"
        [customDrain]
        enabled = false
        timeout = "30m"
    "#;
    let (told, ours) = good(chart);
    assert_eq!(at(&ours, &["profile"]).unwrap().as_str(), Some("drain"));
    let drain = ours["drain"].as_table().unwrap();
    assert_eq!(drain["evictionTimeoutInSeconds"].as_str(), Some("60"));
    let system = drain["systemNamespaces"].as_str().unwrap();
    assert!(system.ends_with("|skyhook)$|^warden$"), "{system}");
    assert!(why(&told.changed, "systemNamespaces").contains("own namespace"));
    assert!(why(&told.left, "customDrain").contains("it is off"));
    assert_eq!(told.taken.len(), 6, "{:?}", told.taken);

    let (told, ours) =
        good("partialDrainEnabled = true\n[customDrain]\nenabled = true\nkind = 'X'");
    assert!(why(&told.left, "partialDrainEnabled").contains("the whole node"));
    assert!(why(&told.left, "customDrain").contains("plugins"));
    assert!(why(&told.changed, "userNamespaces").contains("nothing is drained"));
    let users = at(&ours, &["drain", "userNamespaces"]).unwrap();
    assert_eq!(users.as_array().unwrap().len(), 0);
    let bad = of("evictionTimeoutInSeconds = 60");
    assert_eq!(bad.problems[0].key, "drain.evictionTimeoutInSeconds");
}

/// The chart's four actions; the last is not part of this version.
const REMEDIATION: &str = r#"
    [template]
    mountPath = "/etc/maintenance-template"
    fileName = "x.yaml"
    [updateRetry]
    maxRetries = 5
    retryDelaySeconds = 10
    [remediationActions.COMPONENT_RESET]
    apiGroup = "janitor.dgxc.nvidia.com"
    version = "v1alpha1"
    kind = "RebootNode"
    scope = "Cluster"
    completeConditionType = "NodeReady"
    templateFileName = "nvidia-reboot.yaml"
    equivalenceGroup = "restart"
    [remediationActions.RESTART_BM]
    apiGroup = "janitor.dgxc.nvidia.com"
    version = "v1alpha1"
    kind = "RebootNode"
    completeConditionType = "NodeReady"
    templateFileName = "nvidia-reboot.yaml"
    equivalenceGroup = "restart"
    [remediationActions.REPLACE_VM]
    apiGroup = "janitor.dgxc.nvidia.com"
    version = "v1alpha1"
    kind = "TerminateNode"
    completeConditionType = "NodeTerminated"
    templateFileName = "terminate-node.yaml"
    equivalenceGroup = "terminate"
"#;

#[test]
fn fault_remediation_s_reboots_are_taken_and_other_repairs_call_a_person() {
    let (told, ours) = good(REMEDIATION);
    let actions = at(&ours, &["remediation", "remediationActions"]).unwrap();
    let names: Vec<&String> = actions.as_table().unwrap().keys().collect();
    assert_eq!(names, ["COMPONENT_RESET", "RESTART_BM"]);
    let want = ["COMPONENT_RESET", "RESTART_BM"].map(|name| joined("remediationActions", name));
    assert_eq!(told.taken, want);
    let left = why(&told.left, "remediationActions.REPLACE_VM");
    assert!(left.starts_with("a person is called"), "{left}");
    assert!(why(&told.left, "template").contains("templates"));
    assert!(why(&told.left, "updateRetry").contains("does not use it"));
    let (_, none) = good("[template]\nmountPath = '/x'");
    let actions = at(&none, &["remediation", "remediationActions"]).unwrap();
    assert!(
        actions.as_table().unwrap().is_empty(),
        "nothing is repaired there"
    );
}

#[test]
fn janitor_s_file_is_taken_as_json_for_its_reboots() {
    let text = r#"{
        "global": {
            "timeout": "25m", "manualMode": false,
            "nodes": { "exclusions": [{ "matchLabels": { "pool": "gold" } }] },
            "cspProviderHost": "janitor-provider.nvsentinel.svc.cluster.local:50051",
            "cspProviderCAPath": "/etc/nvsentinel/janitor/csp-ca/ca.crt",
            "cspProviderInsecure": false,
            "cspProviderTokenPath": "/var/run/secrets/nvsentinel/csp-provider/token"
        },
        "rebootNodeController": { "enabled": true, "timeout": "20m" },
        "terminateNodeController": { "enabled": true },
        "gpuResetController": { "enabled": false, "serviceManager": null }
    }"#;
    let (told, ours) = good(text);
    let janitor = ours["janitor"].as_table().unwrap();
    assert_eq!(janitor["timeout"].as_str(), Some("20m"), "its own counts");
    assert_eq!(janitor["enabled"].as_bool(), Some(true));
    assert_eq!(janitor["exclusions"].as_array().unwrap().len(), 1);
    assert!(why(&told.left, "global.timeout").contains("rebootNodeController's"));
    assert!(why(&told.left, "terminateNodeController").contains("not part"));
    assert!(why(&told.left, "gpuResetController").contains("not part"));
    let (told, ours) = good(r#"{"global": {"manualMode": true}}"#);
    assert_eq!(
        at(&ours, &["janitor", "enabled"]).unwrap().as_bool(),
        Some(false)
    );
    assert_eq!(
        at(&ours, &["janitor", "timeout"]).unwrap().as_str(),
        Some("30m")
    );
    assert!(why(&told.changed, "global.timeout").contains("30m there"));
}

#[test]
fn platform_connectors_files_are_taken_with_their_pipeline() {
    let text = r#"{
        "enableK8sPlatformConnector": "true", "K8sConnectorQps": 5.00, "K8sConnectorBurst": 10,
        "MaxNodeConditionMessageLength": 1024, "CompactedHealthEventMsgLen": 72,
        "enableMongoDBStorePlatformConnector": "true", "StoreConnectorMaxRetries": 3,
        "enableGRPCSinkConnector": "false", "GRPCSinkTarget": "", "GRPCSinkTokenPath": "",
        "pipeline": [
            { "name": "MetadataAugmentor", "enabled": true, "config": "/etc/config/metadata.toml" },
            { "name": "OverrideTransformer", "enabled": false, "config": "" },
            { "name": "Deduplicator", "enabled": false, "config": "" }
        ]
    }"#;
    let (told, ours) = good(text);
    let length = at(&ours, &["connector", "MaxNodeConditionMessageLength"]);
    assert_eq!(length.unwrap().as_integer(), Some(1_024));
    let on = at(&ours, &["ingest", "metadata", "enabled"]);
    assert_eq!(on.unwrap().as_bool(), Some(true));
    assert!(why(&told.left, "K8sConnectorQps").contains("flow control"));
    assert!(why(&told.changed, "pipeline[0]").contains("comes first"));
    assert!(why(&told.changed, "pipeline[2]").contains("always counted"));

    let (_, ours) = good(
        "enabled = true\n[[rules]]\nname = 'shm'\nwhen = \"'109' in event.errorCode\"\n\
         override = { isFatal = false, recommendedAction = 'NONE' }",
    );
    let rules = at(&ours, &["ingest", "overrides", "rules"]).unwrap();
    assert_eq!(rules.as_array().unwrap().len(), 1);
    let (told, _) = good("cacheSize = 50\ncacheTTL = '3600s'\nallowedLabels = ['a/b']");
    assert_eq!(
        (told.left.len(), told.taken.as_slice()),
        (2, ["allowedLabels".to_owned()].as_slice())
    );
    let (told, _) =
        good("suppressionWindow = '3m'\ncleanupInterval = '60s'\nincludeChecks = ['X']");
    assert_eq!((told.taken.len(), told.left.len()), (3, 0));
}

#[test]
fn yaml_and_objects_are_named_and_files_of_ours_are_not_the_reference_s() {
    let janitors = of("global:\n  timeout: 25m\nrebootNodeController:\n  enabled: true\n");
    assert!(janitors.problems[0].allowed.contains("yq -o json"));
    let object = of("apiVersion: v1\nkind: ConfigMap\ndata:\n  config.toml: |\n    x\n");
    assert!(object.problems[0].allowed.contains("jsonpath"));
    for ours in [
        "",
        "profile = 'cordon'",
        "[quarantine]\nlabel-prefix = 'a/'",
        "a = [",
        "{",
        "x: y",
    ] {
        assert_eq!(translate(ours), None, "{ours:?}");
    }
    let mixed = "label-prefix = 'a/'\n[api]\n";
    assert_eq!(translate(mixed), None, "it has a key of ours");
}

#[test]
fn whatever_stands_in_a_file_nothing_panics_and_each_key_is_told_once() {
    let values = [
        "1",
        "'x'",
        "[]",
        "{}",
        "[1, {}]",
        "1979-05-27",
        "true",
        "1.5",
    ];
    for (_, keys) in Kind::ALL {
        for (key, value) in keys.iter().flat_map(|key| values.map(|value| (key, value))) {
            let told = of(&format!("{key} = {value}"));
            let all = told
                .left
                .iter()
                .chain(&told.changed)
                .filter(|t| t.key.starts_with(key));
            let taken = told
                .taken
                .iter()
                .filter(|taken| taken.starts_with(key))
                .count();
            let written = told.toml.contains(key);
            assert!(
                all.count() + taken > 0 || written || !told.problems.is_empty(),
                "{key} = {value}"
            );
            told.table().to_string().parse::<Table>().unwrap();
        }
    }
}
