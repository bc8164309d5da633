//! All tests over an in-memory link in one binary. `flows_over_ip` and `flows_over_ethernet` repeat
//! the flow tests over devices.
#![allow(clippy::print_stderr)] // For readers of the output of the tests.

mod crowd;
mod dns;
mod flows;
mod order;
mod published;
mod shards;
mod upstream;
mod world;

const OVER: world::Over = world::Over::Memory;
