//! What `cargo xtask bench` found, as data and as tables.

pub mod data;
pub mod table;
