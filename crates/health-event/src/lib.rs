//! The nouns that every part of Warden shares, and the rules about them that must be the same
//! everywhere: which device an event speaks of, which fault that is, which of two statements is
//! the newer, and what a healthy statement closes.
//!
//! # Invariants
//! - No IO, no clock, no randomness: every rule is a function of its arguments.
//! - The open faults after a history of statements do not depend on the order in which the
//!   statements arrived, nor on how often (`scope::tests`, promise P4).
//!
//! # Reading order
//! [`event`] what is said, [`device`] and [`fault`] of what, [`order`] when, [`scope`] the rule
//! that turns statements into open and closed faults, [`incident`] what a node's stay out of
//! service is made of, [`checks`] and [`keys`] the names, [`text`] how it is shown.

pub mod checks;
pub mod device;
pub mod event;
pub mod fault;
pub mod incident;
pub mod keys;
pub mod node;
pub mod order;
pub mod pci;
pub mod scope;
pub mod text;

pub use device::{Device, devices_of};
pub use event::{
    BehaviourOverrides, Entity, HealthEvent, ProcessingStrategy, RecommendedAction, Space,
};
pub use fault::{FaultId, FaultKey, Scope, SentIdentity, Subject};
pub use node::{NameError, NodeName};
pub use order::{BootId, Boots, Order, OrderError, Sender, Stamp};
pub use scope::{Change, Clear, CloseCause, FaultState, Raise, ScopeState, Statement};
