//! All integration tests in a single binary, because one binary per file would link the crate
//! repeatedly.

mod autotuning;
mod examples;
mod matrix;
mod random;
mod realtime;
mod scenarios;
mod worlds;
