//! Conformance tests of the store.
