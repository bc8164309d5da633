//! Test modules of one binary. A binary for each file would link the whole crate once per file.

mod aborts;
mod congestion;
mod connection;
mod defaults;
mod delivery_rate;
mod ecn;
mod fast_open;
mod goodput;
mod hostile_receiver;
mod pacing;
mod peers;
mod properties;
mod recovery;
mod rules;
mod urgent;
mod windows;
mod world;
