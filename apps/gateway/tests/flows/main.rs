//! Flows of a stack into sockets of the host, and back.
#![allow(clippy::print_stderr)] // For whoever reads the output of the tests.

mod crowd;
mod forward;
mod leaving;
mod line;
mod slots;
mod tcp;
mod udp;
#[path = "../world/mod.rs"]
mod world;

const OVER: world::Over = world::Over::Memory;
