//! A load tester: closed and open loop, over TCP and UDP.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
