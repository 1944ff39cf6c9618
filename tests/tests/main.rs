//! End to end: the programs as they are shipped, on a real control plane, and `kill -9`.

mod alone;
mod crash;
mod exchange;
mod faults;
mod kit;
mod people;
mod profiles;
mod python;
mod registration;
mod trust;
