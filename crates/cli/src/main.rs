//! `warden`.
fn main() {}
