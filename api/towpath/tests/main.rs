//! Test modules of one binary. A binary for each file would link the whole crate once per file.

mod builder;
mod examples;
mod life;
mod outside;
mod sockets;
