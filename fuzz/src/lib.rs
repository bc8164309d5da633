//! Harnesses for a connection with a hostile peer, and for an engine with a hostile program. Each
//! derives the actions of the peer or program, and the time, from bytes. After each step it checks
//! whether the side under test behaved correctly.
//!
//! Each harness is a function of `&[u8]` that panics if it finds a fault. Three callers use it. The
//! test in `tests/hostile.rs` uses bytes of a seeded generator, for seconds in CI and for hours by
//! hand. Fuzz targets use bytes that libFuzzer chose to reach new code.
//!
//! Reading order: [`connection`] (`core/tcp` alone) and [`stack`] (`core/stack` with FIFOs in
//! shared memory) drive; `peer` forges segments, `ledger` judges what is sent. [`engine`] is a
//! whole engine, with a hostile program (`program` has its means) and one that is `honest`.
//! [`device`] has rings and headers that the other side writes. `input` hands out the bytes.
//! [`filter`] judges packets by access lists, beside a linear search; [`cbpf`] by socket filters.
//! [`recovery`] is a sender whose ACKs are wrong until the end. [`transit`] forwards packets with
//! any offload metadata, and [`conntrack`] translates addresses. [`config`] reads configuration
//! files of routers. [`nameserver`] forwards DNS messages of hostile clients and servers.
//! [`vhost`] is the network device of a hostile virtual machine, and [`memif`] a link with a
//! hostile peer. [`siit`] translates packets between IPv4 and IPv6.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cbpf;
pub mod config;
pub mod connection;
pub mod conntrack;
pub mod device;
pub mod engine;
pub mod filter;
pub mod latency;
pub mod memif;
pub mod nameserver;
pub mod recovery;
pub mod siit;
pub mod stack;
pub mod transit;
pub mod vhost;

mod honest;
mod input;
mod ledger;
mod peer;
mod program;
pub mod random;
