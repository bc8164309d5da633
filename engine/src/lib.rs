//! The engine: one thread that turns a stack for programs in other processes.
//!
//! It owns the ports, the stack and the region; programs attach through channels (see
//! [`towpath_shm::layout`]). An [`Engine`] is made, then [`Engine::run`] works on the calling thread
//! until it is stopped; everything that others want of it meanwhile goes through a [`Remote`].
//!
//! Reading order: `run` (the loop, one page) → `commands` and `control` (what programs want) →
//! `host` (what the stack tells) → `slots`, `channels` (who has what) → `lifecycle` (how sockets
//! and processes end) → `processes` (how they come from each other) → `tell` (events) → `starved`, `sweep`
//! (memory that is waited for, and comes back).

mod channels;
mod clock;
mod closer;
mod commands;
mod config;
mod control;
mod datagrams;
mod disconnect;
mod engine;
mod errno;
mod holds;
mod host;
mod lifecycle;
mod options;
mod poller;
mod processes;
mod remote;
mod report;
mod reuse;
mod run;
mod show;
mod slots;
mod starved;
mod sweep;
mod sys;
mod tcp_info;
mod tell;
mod wire;

pub use config::{Buffers, EngineConfig, ResolverConfig, RouteConfig};
pub use engine::{DroppedPacket, Engine, EngineError};
pub use remote::{Gone, Remote};
pub use report::{Counters, Left, Report, SocketEntry, TcpFigures};
