//! Test modules of one binary. A binary for each file would link the whole crate once per file.

mod examples;
mod random;
mod scenarios;
mod worlds;
