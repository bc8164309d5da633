//! Delivers the events of a process to its sleeping threads and tasks.
//!
//! The engine reports events of all sockets of a process through one ring and one notification
//! descriptor. A thread that looks takes all events out of the ring, under one lock, and sorts them
//! by the *watches* of their sockets. A watch has one of three targets:
//! - a *set*, the interest list of epoll(7): sockets, each with the events wanted. An epoll set of
//!   the kernel may belong to it, for descriptors of the kernel. The event goes into the ready list
//!   of the set, and one of its threads is woken;
//! - a *list* of poll(2) or select(2). The event wakes its thread, which looks at its sockets;
//! - a *task* of an async runtime. The event wakes it by its [`Waker`](std::task::Waker)
//!   ([`Registration`]). A [`Dispatcher`] takes events while no thread of the process looks.
//!
//! Rules that keep wake-ups from being lost:
//! - a thread that goes to sleep counts itself first and then empties the ring
//!   ([`LockedReactor::begin_sleep`]);
//! - a thread or task that waits for sockets adds its watches first and then looks at the sockets;
//! - a thread that empties the ring while others sleep asks for the notification descriptor again
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
