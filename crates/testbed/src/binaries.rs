//! Where the control plane's programs are: built once by `scripts/control-plane.sh` into the
//! user's cache folder, one folder for each set of sources.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::component::Component;

/// The variable that overrides where the programs are looked for.
pub const BINARIES_VARIABLE: &str = "WARDEN_CONTROL_PLANE";

/// What the cache folder's name is derived from; `scripts/control-plane.sh` hashes the same files
/// in the same order.
const SOURCES: [&[u8]; 3] = [
    include_bytes!("../../../testbed/go.sum"),
    include_bytes!("../../../testbed/main.go"),
    include_bytes!("../../../testbed/kwok.version"),
];

/// Answers the folder that holds the programs, after looking at each of them.
///
/// `chosen` wins over [`BINARIES_VARIABLE`], which wins over the cache folder.
///
/// # Errors
/// A program is missing; the text says which and how to build it.
pub(crate) fn locate(chosen: Option<&Path>) -> anyhow::Result<PathBuf> {
    let folder = match chosen {
        Some(folder) => folder.to_owned(),
        // Empty counts as not set.
        None => match std::env::var_os(BINARIES_VARIABLE).filter(|value| !value.is_empty()) {
            Some(folder) => PathBuf::from(folder),
            None => cache_folder()?,
        },
    };
    for component in Component::ALL {
        let program = folder.join(component.program());
        if !program.is_file() {
            bail!(
                "the control plane's programs are not built: {} is missing. Run \
                 scripts/control-plane.sh (about 10 minutes, once), or set {BINARIES_VARIABLE} to \
                 a folder that holds them",
                program.display()
            );
        }
    }
    folder
        .canonicalize()
        .with_context(|| format!("resolving the folder {}", folder.display()))
}

fn cache_folder() -> anyhow::Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").with_context(|| {
            format!(
                "looking for the control plane's programs: neither XDG_CACHE_HOME nor HOME is \
                 set. Set {BINARIES_VARIABLE} to the folder that holds them"
            )
        })?)
        .join(".cache"),
    };
    Ok(cache.join("warden/control-plane").join(key(&SOURCES)))
}

/// Two digits for each byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// The first 16 hexadecimal digits of the SHA-256 of the sources, one after the other.
fn key(sources: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for source in sources {
        hash.update(source);
    }
    hexadecimal(&hash.finalize()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf 'ab' | sha256sum` starts with these digits.
    #[test]
    fn key_is_the_start_of_the_sha256_of_the_joined_sources() {
        assert_eq!(key(&[b"a", b"b"]), "fb8e20fc2e4c3f24");
    }

    #[test]
    fn missing_program_is_named_with_the_way_to_build_it() {
        let folder = tempfile::tempdir().unwrap();
        let text = locate(Some(folder.path())).unwrap_err().to_string();
        assert!(text.contains("etcd is missing"), "{text}");
        assert!(text.contains("scripts/control-plane.sh"), "{text}");
    }
}
