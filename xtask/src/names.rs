//! Our domain appears where names are declared, and nowhere else.

use std::path::Path;

use anyhow::Context;

/// Files that may spell the domain out.
const DECLARING: [&str; 2] = [
    "crates/k8s-api/src/names.rs",
    "crates/health-event/src/keys.rs",
];

/// Lines of product code that spell a name of ours out instead of using its constant. Tests may:
/// they state what others see.
pub(crate) fn misplaced(root: &Path) -> anyhow::Result<Vec<String>> {
    let domain = concat!("warden", ".dev/");
    let mut faults = Vec::new();
    for path in crate::rust_files(root)? {
        let shown = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .display()
            .to_string();
        let exempt = DECLARING.contains(&shown.as_str())
            || shown.starts_with("crates/testbed")
            || shown.starts_with("tests/")
            || shown.starts_with("bench/")
            || shown.contains("/tests")
            || shown.ends_with("_tests.rs");
        if exempt {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {shown}"))?;
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (line, number) in product.lines().zip(1..) {
            let code = line.trim_start();
            if code.contains(domain) && !code.starts_with("//") {
                faults.push(format!("{shown}:{number}: a name of ours is spelled out; declare it in names.rs or keys.rs"));
            }
        }
    }
    Ok(faults)
}
