//! All of these tests in one binary, because each file would be linked with the
//! whole crate otherwise.

mod aborts;
mod connection;
mod fast_open;
mod goodput;
mod pacing;
mod peers;
mod properties;
mod rules;
mod urgent;
mod windows;
mod world;
