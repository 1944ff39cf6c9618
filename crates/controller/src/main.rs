//! `warden-controller`.
fn main() {}
