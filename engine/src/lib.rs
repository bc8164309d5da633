//! The engine: one thread that turns a stack for programs in other processes.
//!
//! It owns the ports, the stack and the region; programs attach through channels (see
//! [`towpath_shm::layout`]). An [`Engine`] is made, then [`Engine::run`] works on the calling thread
//! until it is stopped; everything that others want of it meanwhile goes through a [`Remote`]. Harnesses turn
//! it by [`Hand`] instead.
//!
//! Reading order: `run` (the loop, one page) → `commands` and `control` (what programs want) →
//! `rounds` (who is answered when) → `host` (what the stack tells) → `slots`, `channels` (who has what) →
//! `lifecycle` and `ends` (how sockets and processes end) → `processes` (how they come from each other) → `tell` (events) → `starved`, `sweep`
//! (memory that is waited for, and comes back). Apart from these stands [`caller`]: how a program is started.

pub mod caller;
mod channels;
mod clock;
mod closer;
mod commands;
mod config;
mod control;
mod datagrams;
mod disconnect;
mod ends;
mod engine;
mod errno;
mod hand;
mod holds;
mod host;
mod lengthy;
mod lifecycle;
mod options;
mod poller;
mod processes;
mod remote;
mod report;
mod reuse;
mod room;
mod rounds;
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
pub use engine::{DroppedPacket, Engine, EngineError, Outsider};
pub use hand::Hand;
pub use remote::{Gone, Remote};
pub use report::{Counters, HOLDERS_SHOWN, Left, Report, SocketEntry, TcpFigures};
