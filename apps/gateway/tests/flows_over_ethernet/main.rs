//! Flows of IPv4 where packets pass a device with Ethernet headers. Flows of IPv6 are left out:
//! bytes to the gateway's own IPv6 address do not arrive on such a link yet.
#![allow(clippy::print_stderr)] // For whoever reads the output of the tests.

#[path = "../flows/leaving.rs"]
mod leaving;
#[path = "../flows/slots.rs"]
mod slots;
#[path = "../world/mod.rs"]
mod world;

const OVER: world::Over = world::Over::Ethernet;
