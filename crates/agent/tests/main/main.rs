//! The real program against a real gRPC server, over pipes, sockets and files.

mod kit;

mod delivery;
mod kernel_ring;
mod reboot;
mod socket;
mod spool;
