//! The flows of `flows`, where packets pass a device that carries IP packets.
#![allow(clippy::print_stderr)] // For readers of the output of the tests.

#[path = "../flows/mod.rs"]
mod flows;
#[path = "../world/mod.rs"]
mod world;

const OVER: world::Over = world::Over::Ip;
