//! The whole loop with a real agent: fault, cordon, drain, reboot by a simulated provider, proof,
//! release; and what gets in its way.

mod budgets;
mod cost;
mod course;
mod evictions;
mod gone;
mod kit;
mod kubelet;
mod outages;
mod own_node;
mod people;
mod provider;
mod settings;
mod stages;
mod standby;
