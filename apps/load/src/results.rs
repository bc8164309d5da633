//! Results of one or more runs: statistics, assertions, and their forms for people and programs.
//!
//! - `values`, options of a command that are about results;
//! - `outcome`, the results of a command, of which `compare` and `search` are made of several runs;
//! - `statistics`, differences and noise; `distribution`, times in bins;
//! - `figures`, words for numbers;
//! - `text`, `tables` (JSON, CSV) and `page` with its plots (`plot`), the forms;
//! - `machine`, the tester's machine.

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
