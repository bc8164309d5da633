//! All integration tests in a single binary, because one binary per file would link the crate
//! repeatedly.

mod examples;
mod random;
mod scenarios;
mod worlds;
