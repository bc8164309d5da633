//! Test modules of one binary. A binary for each file would link the whole crate once per file.

mod device;
mod queues;
mod tun;
