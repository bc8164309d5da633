//! All of these tests in one binary, because each file would be linked with the
//! whole crate otherwise.

mod builder;
mod examples;
mod life;
mod outside;
mod sockets;
