//! The spool's id: a ULID that sorts after that of the spool before it, also if the clock was set
//! back in between, because a later spool's events count as later.

use std::path::Path;

use ulid::Ulid;

/// Beside the database, so that it outlives it.
const FILE: &str = "spool.id";

/// An id for a new spool; `earlier` is that of one before it.
pub fn later_than(earlier: Option<Ulid>) -> Ulid {
    let now = Ulid::new();
    let next = earlier.and_then(|earlier| earlier.increment());
    next.map_or(now, |next| next.max(now))
}

/// The id of the last spool in this folder, if there was one.
pub(super) fn last(folder: &Path) -> Option<Ulid> {
    let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
    Ulid::from_string(text.trim()).ok()
}

/// Whether there was a spool in this folder.
pub(super) fn is_known(folder: &Path) -> bool {
    folder.join(FILE).exists()
}

/// Remembers it for the next spool. What can't be written costs only that.
pub(super) fn remember(folder: &Path, id: &str) {
    if last(folder).is_some_and(|last| last.to_string() == id) {
        return;
    }
    if let Err(error) = std::fs::write(folder.join(FILE), format!("{id}\n")) {
        tracing::warn!(%error, folder = %folder.display(), "spool.id not written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_spools_id_is_later_whatever_the_clock_says() {
        let ahead = Ulid::from_parts(Ulid::new().timestamp_ms() + 1_000_000, 7);
        assert!(later_than(Some(ahead)) > ahead);
        let behind = Ulid::from_parts(5, 7);
        assert!(later_than(Some(behind)).timestamp_ms() > 1_000_000);
        assert!(later_than(None).timestamp_ms() > 1_000_000);
        // Nothing is later than the last one.
        assert!(later_than(Some(Ulid::from(u128::MAX))).timestamp_ms() > 1_000_000);
    }
}
