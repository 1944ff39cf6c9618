//! The real program against a real gRPC server, over pipes, sockets and files.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy's exception for tests does not reach their helpers"
)]

mod answers;
mod crash;
mod crowd;
mod delivery;
mod kernel_ring;
mod kit;
mod level;
mod reboot;
mod recovery_action;
mod refused;
mod sight;
mod socket;
mod spool;
mod start;
mod trust;
mod vanished;
