//! Wiring; being built.
