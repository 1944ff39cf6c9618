//! End to end: the programs as they are shipped, on a real control plane, and `kill -9`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of a test fail it, as the test itself does"
)]

mod account;
mod alone;
mod asked;
mod between;
mod crash;
mod demo;
mod disk;
mod faults;
mod gone;
mod kit;
mod modules;
mod off;
mod people;
mod plaintext;
mod pools;
mod profiles;
mod python;
mod reference;
mod refused;
mod registration;
mod rotation;
mod sent_again;
mod setup;
mod testbed;
mod trust;
mod whole;
