//! Rings and byte FIFOs in shared memory, and the protocol by which one process sleeps and another
//! wakes it. The algorithms are checked by loom.
//!
//! Reading order:
//! 1. [`towpath_shm::layout`]: the layout of the memory shared with programs.
//! 2. `protocol`: the algorithms.
//! 3. [`Region`], [`Channel`] and [`Status`]: the memory.
//! 4. [`Life`]: how programs detect that the engine has exited.
//! 5. [`program_fifo`]: the program's sides of a socket's FIFOs; [`urgent`]: the mark of urgent
//!    data, at which reads stop.
//! 6. [`EngineRecv`] and [`EngineSend`]: the engine's sides, which validate every word of the
//!    program. [`HeapRecv`] and [`HeapSend`]: FIFOs in private memory. [`SocketRecv`] and
//!    [`SocketSend`]: a FIFO in shared or in private memory.
//! 7. `pins`: references of packets to bytes in a FIFO.
//! 8. [`Windows`]: the allocator of the memory.
//!
//! The locks are in `lock.rs` and `process_lock.rs`; `word.rs` has their common code. With
//! [`Relay`], the threads of a process take turns at running an engine (the network stack).
//!
//! # Example
//! A program and its engine in one process: the program writes to a socket's transmit FIFO.
//! ```
//! use std::os::fd::AsFd;
//! use towpath_ring::{
//!     Appended, Attach, Channel, EngineChannel, EngineSend, EngineStatus, Region, Rung,
//!     SendBuffer, Status, Wanted, Windows, append, notification, program_fifo,
//!     push_command, ring_engine,
//! };
//! use towpath_shm::layout::{Command, op};
//!
//! // The engine creates the memory, and a FIFO of 64 KiB for the socket in slot 5.
//! let (region, channel) = (Region::create()?, Channel::create()?);
//! let mut engine = EngineChannel::new(channel.clone());
//! let windows = Windows::new(&region, 64 << 20);
//! let mut fifo = EngineSend::new(&windows, 5, 64 << 10, 64 << 10);
//! assert_eq!(fifo.attach(), Attach::Done);
//!
//! // The program writes, and notifies the engine once.
//! let slot = region.slot(5).expect("below SLOTS_MAX");
//! let write = |position, n: u32| {
//!     program_fifo::write_at(&region, slot, position, &b"down the towpath"[..n as usize]);
//! };
//! let engine_lives = || true;
//! let done = append(slot, 0, engine_lives, Wanted::UpTo(16), write);
//! assert_eq!(done, Appended::Bytes { n: 16, tell: true });
//! push_command(&channel, &Command { op: op::TX, slot: 5, ..Command::default() })?;
//!
//! // If the engine slept, this would wake it.
//! let (page, bell) = (EngineStatus::create()?, notification::create()?);
//! let status = Status::map(page.file().expect("shared").try_clone()?)?;
//! ring_engine(&status, &Rung::default(), bell.as_fd());
//! assert!(!notification::clear(bell.as_fd()), "it is awake");
//!
//! // The engine copies the command, and validates it before use.
//! let command = engine.pop_command()?.expect("one was pushed");
//! assert_eq!((command.op, command.slot), (op::TX, 5));
//! assert!(fifo.pull(), "the position is possible");
//! let mut bytes = [0; 7];
//! fifo.peek(9, 7).copy_to(0, &mut bytes);
//! assert_eq!(&bytes, b"towpath");
//! fifo.release(16);
//! assert_eq!(program_fifo::queued(slot), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

#[macro_use]
mod tls;

mod append;
mod area;
mod buffer;
mod call;
mod engine_recv;
mod engine_send;
mod exchange;
mod fifo;
mod give_back;
mod heap;
mod life;
mod lock;
mod pins;
#[cfg(not(loom))]
mod process_lock;
mod protocol;
mod region;
mod relay;
mod ring;
mod slot_or_heap;
mod spin;
mod status;
mod wait;
mod waiting_task;
mod windows;
mod word;

pub mod notification;
pub mod program_fifo;
pub mod urgent;

pub use append::{Appended, Wanted, append};
pub use area::{WINDOW_MAX, WINDOW_MIN};
pub use buffer::{Payload, RecvBuffer, SendBuffer};
pub use call::{answer_to, answer_word, ask, await_answer};
pub use engine_recv::EngineRecv;
pub use engine_send::{Attach, EngineSend, take_tx_wanted};
pub use exchange::{Giver, Taker, exchange};
pub use heap::{HeapRecv, HeapSend, KeptBytes};
pub use life::Life;
pub use lock::{
    Door, Guard, are_out, end_generation, forget_thread_id, is_inside, lock_rx, lock_tx,
    release_dead, thread_id,
};
#[cfg(not(loom))]
pub use process_lock::{LockGuard, ProcessLock};
pub use region::{Channel, Region};
pub use relay::{Relay, Taken, Who};
pub use ring::{
    ChannelError, EngineChannel, Full, LastEvent, cancel_sleep, events_waiting, has_ended,
    pop_event, prepare_sleep, push_command, take_events_lost,
};
pub use slot_or_heap::{SocketRecv, SocketSend};
pub use spin::{Spin, processors};
pub use status::{EngineStatus, Rung, Status, ring_engine};
pub use wait::{Waiter, wake};
pub use waiting_task::WaitingTask;
pub use windows::{KEPT_MAX, Windows, WindowsUse};

#[cfg(all(test, loom))]
mod loom_fifo;
#[cfg(all(test, loom))]
mod loom_relay;
#[cfg(all(test, loom))]
mod loom_reuse;
#[cfg(all(test, loom))]
mod loom_tasks;
#[cfg(all(test, loom))]
mod loom_tests;
