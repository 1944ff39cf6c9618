//! Generators and checks of the repository.
fn main() {}
