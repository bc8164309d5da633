//! Two nodes on a cable, in virtual time.

mod any_address;
mod node;
mod pacing;
mod world;
