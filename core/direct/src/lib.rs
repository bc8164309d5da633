//! The owner of a stack whose buffers are private memory: for simulators, tests and sans-IO use.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
