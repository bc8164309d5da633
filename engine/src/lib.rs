//! The engine: threads that turn a stack for programs in other processes, and one that knows these
//! processes.
//!
//! The engine owns the ports, the stack and the region; programs attach through channels (see
//! [`towpath_shm::layout`]). [`Engine::run`] works on the calling thread until it is stopped.
//! Meanwhile other threads reach the engine through a [`Remote`]. A thread that waits for other
//! descriptors, too, calls [`Engine::turn`]; harnesses use [`Hand`].
//!
//! Two things are in it. The `shard` is the data path: a stack with its ports, the sockets, and the
//! rings of the programs that hold them. The `registry` is who there is: processes, their control
//! sockets, and the descriptors that are given out and closed. Neither knows the other: each tells
//! news by `mail`, which `control` carries. In [`Engine::run`] it goes between two threads; where a
//! host turns the engine, it stays on one.
//!
//! Reading order:
//! 1. `run`: the loop, one page.
//! 2. `team`: several shards, and threads.
//! 3. `control` and `mail`.
//! 4. In the registry `requests`: requests that descriptors go with.
//! 5. In the shard `turn` and `sleeping`.
//! 6. `orders`: news of the registry; `commands` and `rounds`: news of programs, and when a request
//!    is answered; `host`: news of the stack.
//! 7. `slots` and `channels`: the sockets, and which process holds them.
//! 8. `socket_commands` and `asked`: commands and requests about sockets.
//! 9. `births`, `portions` and `ending`: how processes come from processes, and end.
//! 10. `lifecycle`: how sockets end; `tell`: events.
//! 11. `feeding` and `sweep`: memory that programs wait for, and memory that is taken back.
//!
//! The state that these files change is in `askers`, `ends` and `starved`, so that the shard need
//! not know the use of it. Apart from these stands [`caller`]: how a program is
//! started.
//!
//! Work for later stands in lists, which are named by the step that their entries wait for:
//!
//! | list | what is in it | who does it, when |
//! |---|---|---|
//! | `to_send` | datagram sockets with more to send than a turn allows | `datagrams`, some a turn |
//! | `to_return` | datagram sockets whose FIFO lent bytes | `datagrams`, after the stack's turn |
//! | `to_accept` | connections without bytes (TCP_DEFER_ACCEPT) | `host`, with bytes, or in time |
//! | `to_offer` | those with bytes and a listener in another shard | `among`, in the same turn |
//! | `to_offer_again` | listeners without memory for such a connection | `among`, 0.1 s later |
//! | `to_reset_failed` | those of them that failed meanwhile | `lifecycle`, in the same turn |
//! | `to_reset_unclaimed` | taken connections whose listener was let go | `lifecycle`, 1 s later |
//! | `to_close_parked` | sockets in messages without a receiver | `lifecycle`, 30 s later |
//! | `to_tell_lingering` | closed sockets whose close(2) waits | `lifecycle`, some in each turn |
//! | `to_bury` | sockets that stack and processes let go of | `lifecycle`, in the same turn |
//! | `to_reuse` | slots of buried sockets with a thread inside | `reuse`, when it leaves or dies |
//! | `to_disinherit` | clones whose process has not begun | `births`, half a minute later |
//! | `to_restrict` | channels of programs without a HELLO | `births`, seconds later |
//! | `to_resume` | datagram sockets whose device has room | `return_lent`, in the same turn |
//! | `to_publish` | sockets whose TCP state programs do not know yet | `tell`, in the same turn |
//! | `to_tell` | sockets of whose news some holders do not know | `tell`, some in each turn |
//! | `to_sweep` | sockets with memory, or that may have some | `sweep`, some at a time |
//! | `to_go_on` | processes with a long CLONE or HELLO | `portions`, one in each turn |
//! | `to_cut_off` | processes that broke the rules | `ending`, in the same turn |
#![warn(missing_docs)]

pub mod caller;
mod clock;
mod config;
mod control;
#[cfg(test)]
mod crossing;
mod domain;
mod engine;
mod errno;
mod hand;
mod ids;
mod link;
mod lookout;
mod mail;
mod net;
mod poller;
mod registry;
mod remote;
mod report;
mod run;
#[cfg(test)]
mod several;
mod shard;
mod team;

pub use config::{BUSY_POLL, Buffers, EngineConfig, ResolverConfig, RouteConfig};
pub use engine::{Engine, EngineError};
pub use hand::Hand;
pub use net::{Applied, InterfaceState, NetState};
pub use registry::Outsider;
pub use remote::{Gone, Remote};
pub use report::{Counters, HOLDERS_SHOWN, Left, Report, SocketEntry, TcpFigures};
pub use run::Next;
pub use shard::DroppedPacket;
pub use towpath_stack::net::{Change, Fault, How, Refused, RouteKind, RouteSpec};
