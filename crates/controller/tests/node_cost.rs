//! What `--check-config` tells that a configuration costs.

use std::process::Command;

fn told(configuration: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    std::fs::write(&path, configuration).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warden-controller"))
        .arg("--check-config")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let cost = text.find("[node_cache]").unwrap();
    text[cost..].to_owned()
}

#[test]
fn check_config_tells_what_a_node_costs() {
    let shipped = r#"[node_cache]
annotations = "12 by name"
bytes_per_node = 677
fields = []
labels = "13 by name"
typical_node = "63 labels, 7 annotations, 22 conditions, 50 images"
"#;
    assert_eq!(told("profile = 'cordon'").trim(), shipped.trim());
    let rule = "[[quarantine.rule-sets]]\nname = 'mine'\ncordon.shouldCordon = true\nmatch.all = [\n\
                { kind = 'HealthEvent', expression = 'event.isFatal' },\n\
                { kind = 'Node', expression = '''node.metadata.labels.exists(key, \
                key.startsWith('rack.'))''' }]";
    let all_labels = shipped
        .replace("labels = \"13 by name\"", "labels = \"all\"")
        .replace("677", "2807");
    assert_eq!(told(rule).trim(), all_labels.trim());
}
