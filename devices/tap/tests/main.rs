//! All of these tests in one binary, because each file would be linked with the
//! whole crate otherwise.

mod device;
mod queues;
mod tun;
