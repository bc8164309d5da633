//! A link with rate, delay, loss and a queue, without I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
