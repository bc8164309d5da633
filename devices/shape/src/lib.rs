//! Delay, loss, rate and queues around any port.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
