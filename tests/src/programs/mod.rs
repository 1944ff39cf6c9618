//! The programs under test: the controller and the agents, as they are shipped, on loopback.

mod agent;
mod controller;

pub use agent::{Agent, KernelLog, Trust};
pub use controller::{Controller, ControllerOptions};

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};

/// The controller's own namespace, which an installation makes.
pub const NAMESPACE: &str = "warden";
/// The controller's Lease in it.
pub const LEASE: &str = "warden-controller";
/// What a program gets to end by itself.
const STOP: Duration = Duration::from_secs(20);

/// The folder of the built programs: `WARDEN_BIN_DIR`, else beside the running test or program.
///
/// # Errors
/// The programs are not there; the text says how to build them.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let folder = match std::env::var_os("WARDEN_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => beside_us()?,
    };
    let path = folder.join(name);
    if !path.is_file() {
        bail!(
            "no program {}; build it with cargo build --workspace --bins",
            path.display()
        );
    }
    Ok(path)
}

fn beside_us() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("finding the path of this program")?;
    let folder = own.parent().context("this program has no folder")?;
    // Test binaries lie one folder deeper.
    let deps = folder.file_name().is_some_and(|name| name == "deps");
    Ok(if deps {
        folder.parent().unwrap_or(folder).to_owned()
    } else {
        folder.to_owned()
    })
}

/// A free port on loopback. Another program may take it before ours does; the start then fails
/// with its name.
///
/// # Errors
/// There is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?)
}
