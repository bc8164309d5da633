//! Delivers the events of a process to its sleeping threads and tasks.
//!
//! The engine (the network stack) reports events of all sockets of a process through one ring and
//! one notification descriptor. A thread that checks for events takes all events out of the ring,
//! under one lock. Then the thread passes them to the *watches* (registered interests) of their
//! sockets. A watch has one of three targets:
//! - a *set*, the interest list of epoll(7): sockets, each with the wanted events. Its kernel
//!   descriptors are in a kernel epoll set. The event is added to the ready list of the set, and
//!   wakes a thread that waits for the set;
//! - a *list* of poll(2) or select(2). The event wakes the thread, which checks its sockets;
//! - a *task* of an async runtime. The event wakes the task by its [`Waker`](std::task::Waker)
//!   ([`Registration`]). A [`Dispatcher`] takes events while no thread of the process waits.
//!
//! Rules that avoid lost wake-ups:
//! - before a thread sleeps, it counts itself as a sleeper, then empties the ring
//!   ([`LockedReactor::begin_sleep`]);
//! - a thread or task that waits for sockets adds its watches, then checks the sockets;
//! - a thread that empties the ring while others sleep requests the next notification
//!   ([`LockedReactor::drain`]), and wakes the targets of the events.

mod dispatcher;
mod interest;
mod lists;
mod locked;
mod registration;
mod set_call;
mod sets;
mod sleep;
mod wake;

pub use self::dispatcher::Dispatcher;
pub use self::locked::{ALWAYS, LockedReactor};
pub use self::registration::Registration;
pub use self::set_call::{KernelChange, LookOrder, ReadySocket, SetCall};
pub use self::sleep::{clear, cookie};
pub use crate::hub::{Hub, NestedSet, Reactor};
