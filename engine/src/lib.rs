//! The engine: one thread that turns a stack for programs in other processes.
//!
//! It owns the ports, the stack and the region; programs attach through channels (see
//! [`towpath_shm::layout`]). An [`Engine`] is made, then [`Engine::run`] works on the calling thread
//! until it is stopped; everything that others want of it meanwhile goes through a [`Remote`]. A thread that waits for
//! other things, too, turns it by [`Engine::turn`]; harnesses do by [`Hand`].
//!
//! Reading order: `run` (the loop, one page) → `commands` and `control` (what programs want) → `rounds` and
//! `lengthy` (when a request is answered) → `host` (what the stack tells) → `slots`, `channels` (the sockets and
//! the processes that hold them) → `lifecycle` and `ending` (how sockets and processes end) → `processes` (how
//! processes make others) → `tell` (events) → `feeding`, `sweep` (memory that programs wait for, and memory that
//! is taken back). What these change, and no more than that, is in `requests`, `ends` and `starved`, so that the
//! engine, which has it, need not know what is done with it. Apart from these stands [`caller`]: how a program is started.
//!
//! What is to be done later stands in lists, which are named by what is done with their entries:
//!
//! | list | what is in it | who does it, when |
//! |---|---|---|
//! | `to_send` | datagram sockets with more to send than a turn allowed | `datagrams`, some in each turn |
//! | `to_return` | datagram sockets whose FIFO lent bytes to packets | `datagrams`, after the stack's turn |
//! | `to_accept` | connections that wait for their first bytes (TCP_DEFER_ACCEPT) | `host`, when these come, or in time |
//! | `to_reset_failed` | those of them that failed meanwhile | `lifecycle`, in the same turn |
//! | `to_reset_unclaimed` | connections taken off a queue by a process that then let go of the listener | `lifecycle`, a second later |
//! | `to_close_parked` | sockets in messages that nobody has received | `lifecycle`, half a minute later |
//! | `to_tell_lingering` | closed sockets whose close(2) waits for the peer | `lifecycle`, some in each turn |
//! | `to_bury` | sockets that the stack and all processes let go of | `lifecycle`, in the same turn |
//! | `to_reuse` | slots of buried sockets that a thread is inside still | `reuse`, when it tells or its process dies |
//! | `to_disinherit` | clones whose process has not begun | `processes`, half a minute later |
//! | `to_restrict` | channels of programs that run and have not said HELLO | `processes`, seconds later |
//! | `to_publish` | sockets whose TCP state programs do not know yet | `tell`, in the same turn |
//! | `to_tell` | sockets of whose news some holders do not know | `tell`, some in each turn |
//! | `to_sweep` | sockets with memory, or that may have some | `sweep`, some at a time |
//! | `to_cut_off` | processes that broke the rules | `lifecycle`, in the same turn |
#![warn(missing_docs)]

mod answer;
pub mod caller;
mod channels;
mod clock;
mod closer;
mod commands;
mod config;
mod control;
mod datagrams;
mod disconnect;
mod ending;
mod ends;
mod engine;
mod errno;
mod feeding;
mod hand;
mod holds;
mod host;
mod ids;
mod lengthy;
mod lifecycle;
mod linux;
mod option_bits;
mod options;
mod poller;
mod processes;
mod remote;
mod report;
mod requests;
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
pub use run::Next;
