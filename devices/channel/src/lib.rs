//! A link in memory between two stacks of one process.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
