//! Tests of the quarantine against a small world: events go through the shared fault rules, and
//! writes meet a node that checks their tests as the API server does.

mod adoption;
mod guards;
mod properties;
mod rows;
mod rules_gone;
mod stages;
mod states;
mod stripped;
mod validation;
mod world;
