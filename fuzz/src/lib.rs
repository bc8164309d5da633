//! A connection and a peer that may send anything: harnesses that turn bytes into such a peer, a program
//! and time, and say after each step whether what the connection did was allowed.
//!
//! Each harness is a function of `&[u8]` that panics when something is wrong. It has three users: the
//! test in `tests/hostile.rs` gives it bytes of a seeded generator, for seconds in CI and for hours by
//! hand; the fuzz targets give it bytes that libFuzzer chose to reach new code.
//!
//! Reading order: [`connection`] (`core/tcp` alone) and [`stack`] (`core/stack` with FIFOs in shared
//! memory) drive; `peer` forges segments, `ledger` judges what is sent, `input` hands out the bytes.
#![forbid(unsafe_code)]

pub mod connection;
pub mod stack;

mod input;
mod ledger;
mod peer;
