//! Events that the controller refused, put aside for a person: `refused/NUMBER.txt`.

use std::path::Path;

use health_event::HealthEvent;

/// Files kept at most; the oldest go.
const KEPT: usize = 100;

/// Writes the event with the reason. A failure is said in the log: the event stands there too.
pub(super) fn keep(folder: &Path, event: &HealthEvent, number: u64, reason: &str) {
    let folder = folder.join("refused");
    let text = format!("refused by the controller: {reason}\n\n{event:#?}\n");
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join(format!("{number:020}.txt")), text))
        .and_then(|()| prune(&folder));
    if let Err(error) = written {
        tracing::warn!(folder = %folder.display(), %error, number, reason, ?event,
            "refused event could not be put aside");
    }
}

fn prune(folder: &Path) -> std::io::Result<()> {
    let mut names: Vec<_> = std::fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .collect();
    names.sort_unstable();
    let surplus = names.len().saturating_sub(KEPT);
    names
        .iter()
        .take(surplus)
        .try_for_each(std::fs::remove_file)
}
