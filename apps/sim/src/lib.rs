//! A network simulator with the stack that ships, in virtual time.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
