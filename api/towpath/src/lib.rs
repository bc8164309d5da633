//! A TCP/IP stack in the process of a Rust program.

#![warn(missing_docs)]
