//! Parts of the project's tools that `cargo xtask` and the measurements of `lab/` use.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Prints results for the user.
#![forbid(unsafe_code)]

pub mod debian;
pub mod interrupt;
pub mod table;
pub mod workspace;
