//! Results of one or more runs: statistics, assertions, and output formats.
//!
//! - `values`: command options about results;
//! - `outcome`: results of a command; `compare` and `search` create them from several runs;
//! - `statistics`: differences and noise; `distribution`: times in bins;
//! - `figures`: formatting of numbers;
//! - `text`, `tables` (JSON, CSV) and `page` with its plots (`plot`): the output formats;
//! - `machine`: description of the tester's machine.

pub mod compare;
pub mod distribution;
pub mod figures;
pub mod machine;
pub mod outcome;
pub mod page;
mod plot;
#[doc(hidden)]
pub mod samples;
pub mod search;
mod statistics;
pub mod tables;
pub mod text;
pub mod values;
