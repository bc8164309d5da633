//! Rings and byte FIFOs over shared memory, and the protocol by which one side sleeps and the
//! other wakes it. One algorithm each, checked with loom.
//!
//! Reading order: [`towpath_shm::layout`] (the contract) → `protocol` (the algorithms alone) →
//! [`Region`], [`Channel`] and [`Status`] (the memory) → [`Life`] (how the engine's end is noticed) →
//! [`program_fifo`] (a program's ends of a socket) → [`EngineRecv`] and [`EngineSend`] (the engine's ends, which
//! believe nothing) → [`Windows`] (who gets how much memory). [`HeapRecv`] and [`HeapSend`] are the same ends
//! without another process. Apart from these stand the locks, `lock.rs` and `process_lock.rs`, and what they have
//! in common, `word.rs`.

#[macro_use]
mod tls;

mod append;
mod area;
mod buffer;
mod engine_recv;
mod engine_send;
mod fifo;
mod give_back;
mod heap;
mod life;
mod lock;
#[cfg(not(loom))]
mod process_lock;
mod protocol;
mod region;
mod ring;
mod spin;
mod status;
mod wait;
mod windows;
mod word;

pub mod doorbell;
pub mod program_fifo;

pub use append::{Appended, Wanted, append};
pub use area::{WINDOW_MAX, WINDOW_MIN};
pub use buffer::{Payload, RecvBuffer, SendBuffer};
pub use engine_recv::EngineRecv;
pub use engine_send::{Attach, EngineSend, take_tx_wanted};
pub use heap::{HeapRecv, HeapSend};
pub use life::Life;
pub use lock::{
    Door, Guard, are_out, end_generation, forked, forks, is_inside, lock_rx, lock_tx, release_dead,
    set_channel, thread_id,
};
#[cfg(not(loom))]
pub use process_lock::{Lock, LockGuard};
pub use region::{Channel, Region};
pub use ring::{
    ChannelError, EngineChannel, Full, cancel_sleep, events_waiting, has_ended, pop_event,
    prepare_sleep, push_command, take_events_lost,
};
pub use spin::{Spin, has_processors_to_spare};
pub use status::{EngineStatus, Rung, Status, ring_engine};
pub use wait::{Waiter, wake};
pub use windows::{KEPT_MAX, Windows, WindowsUse};

#[cfg(all(test, loom))]
mod loom_fifo;
#[cfg(all(test, loom))]
mod loom_reuse;
#[cfg(all(test, loom))]
mod loom_tests;
