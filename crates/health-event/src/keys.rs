//! Keys of event metadata that are ours.

/// Where an event that passed an agent stands among all of that node: [`crate::Order`].
pub const ORDER: &str = "warden.dev/order";
/// The id that a socket sender gave to its event.
pub const SENDER_ID: &str = "warden.dev/sender-id";
/// The time that a sender claimed, where the time of receipt was taken instead.
pub const CLAIMED_TIME: &str = "warden.dev/claimed-time";
/// The detector inside the agent that observed it; only agents set it, and they remove it from
/// whatever comes over their socket.
pub const DETECTOR: &str = "warden.dev/detector";
/// `user` where a record that was not the kernel's was accepted.
pub const ORIGIN: &str = "warden.dev/origin";
/// `true` on a fault that was read from before the agent's first start.
pub const HISTORICAL: &str = "warden.dev/historical";
/// Why a healthy event was sent, where it was not read: `reboot`.
pub const CAUSE: &str = "warden.dev/cause";
/// The machine (system UUID) on which the agent that passed the event runs.
pub const MACHINE_ID: &str = "warden.dev/machine-id";
/// `true` on an event that was read back from its node because the store had been lost, and whose
/// sender is no detector of the node's agent: it stays until that sender speaks.
pub const RESTORED: &str = "warden.dev/restored";
/// Set by `warden inject`.
pub const INJECTED: &str = "warden.dev/injected";
/// The fault that this one follows from.
pub const CONSEQUENCE_OF: &str = "warden.dev/consequence-of";
/// What an override of the controller changed, and what was said: only the controller sets it.
pub const OVERRIDDEN: &str = "warden.dev/overridden";
/// Begins the id of an event that an agent read in its kernel's log: `kmsg:BOOT:SEQUENCE:INDEX`. A
/// record that is read again, since its reader died before it had noted how far it was, is the same
/// event.
pub const KERNEL_RECORD_ID: &str = "kmsg:";
/// Begins the id of an agent's word that a fault was not found again after a reboot:
/// `reboot:BOOT:HASH`, of the present boot and the fault. An agent that died before it had noted the
/// word says the same.
pub const REBOOT_RECOVERY_ID: &str = "reboot:";
/// Prefix of all of them: no sender but an agent may set these.
pub const PREFIX: &str = "warden.dev/";
