//! Queueing disciplines, without I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
