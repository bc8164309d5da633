//! Access lists and packets for benchmarks of rules and routers.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod shape;
