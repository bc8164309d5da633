//! The flows of `flows`, where packets pass a device with Ethernet headers.
#![allow(clippy::print_stderr)] // For whoever reads the output of the tests.

#[path = "../flows/forward.rs"]
mod forward;
#[path = "../flows/leaving.rs"]
mod leaving;
#[path = "../flows/line.rs"]
mod line;
#[path = "../flows/slots.rs"]
mod slots;
#[path = "../flows/tcp.rs"]
mod tcp;
#[path = "../flows/udp.rs"]
mod udp;
#[path = "../world/mod.rs"]
mod world;

const OVER: world::Over = world::Over::Ethernet;
