//! Ports on 127.0.0.1 for one testbed.
//!
//! They are taken in blocks from below the range that the kernel uses for outgoing connections,
//! so that a component finds its port still free after a restart. A lock file per block keeps
//! testbeds of other processes away; foreign programs are noticed by binding each port once.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, bail};

const FIRST_PORT: u16 = 20_000;
const BLOCK: u16 = 8;
/// The last port is 31,999: the kernel's own range starts at 32,768 by default.
const BLOCKS: u16 = 1_500;

/// A block of ports, held for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Ports {
    first: u16,
    _lock: File,
}

impl Ports {
    /// Takes a free block, beginning to look at a random place.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join("warden-testbed-ports");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {} for port locks", folder.display()))?;
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(BLOCKS);
        let start = u16::try_from(start).expect("a remainder of a u16 fits");
        for step in 0..BLOCKS {
            let first = FIRST_PORT + (start + step) % BLOCKS * BLOCK;
            let path = folder.join(first.to_string());
            let lock = File::options()
                .create(true)
                .append(true)
                .open(&path)
                .with_context(|| format!("opening the port lock {}", path.display()))?;
            if lock.try_lock().is_ok() && (first..first + BLOCK).all(is_free) {
                return Ok(Self { first, _lock: lock });
            }
        }
        bail!(
            "no {BLOCK} ports in a row are free on 127.0.0.1 from {FIRST_PORT} on; stop what \
             listens there"
        )
    }

    pub(crate) fn api_server(&self) -> u16 {
        self.first
    }

    pub(crate) fn etcd_client(&self) -> u16 {
        self.first + 1
    }

    pub(crate) fn etcd_peer(&self) -> u16 {
        self.first + 2
    }

    pub(crate) fn controller_manager(&self) -> u16 {
        self.first + 3
    }

    pub(crate) fn scheduler(&self) -> u16 {
        self.first + 4
    }

    pub(crate) fn kwok(&self) -> u16 {
        self.first + 5
    }

    pub(crate) fn spare(&self) -> [u16; 2] {
        [self.first + 6, self.first + 7]
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_held_at_once_do_not_overlap() {
        let (one, two) = (Ports::take().unwrap(), Ports::take().unwrap());
        let (end_of_one, end_of_two) = (one.spare()[1], two.spare()[1]);
        assert!(end_of_one < two.api_server() || end_of_two < one.api_server());
    }
}
