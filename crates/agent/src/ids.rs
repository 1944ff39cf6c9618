//! Who this agent is: node, machine, boot, process.

use std::io::Read as _;
use std::path::Path;

use health_event::{BootId, NodeName};
use ulid::Ulid;

use crate::config::Config;

/// Where the machine's system UUID stands; readable by root only.
const PRODUCT_UUID: &str = "/sys/class/dmi/id/product_uuid";
/// The installation's id, where there is no system UUID.
const MACHINE_ID: &str = "/etc/machine-id";

/// Who this agent is. Fixed for the life of the process: a new boot is a new process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Node.
    pub node: NodeName,
    /// Boot; empty if it could not be read.
    pub boot: BootId,
    /// Machine; empty if it could not be read.
    pub machine: String,
    /// This process: a ULID.
    pub process: String,
}

impl Identity {
    /// Reads what the configuration does not give.
    pub fn observe(config: &Config) -> Self {
        let machine = config.machine_id.clone().unwrap_or_else(|| {
            [PRODUCT_UUID, MACHINE_ID]
                .iter()
                .map(|path| first_line(Path::new(path)))
                .find(|id| !id.is_empty())
                .unwrap_or_default()
        });
        Self {
            node: config.node.clone(),
            boot: BootId::new(&first_line(&config.boot_id_file)),
            machine,
            process: Ulid::new().to_string(),
        }
    }
}

/// The first line of a small file, at most 128 characters; empty if it can't be read, which is
/// said in the log.
fn first_line(path: &Path) -> String {
    let read = || {
        let mut text = String::new();
        std::fs::File::open(path)?
            .take(4_096)
            .read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    match read() {
        Ok(text) => text
            .lines()
            .next()
            .unwrap_or_default()
            .trim()
            .chars()
            .take(128)
            .collect(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "id file can't be read");
            String::new()
        }
    }
}
