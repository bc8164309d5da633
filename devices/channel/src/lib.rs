//! A link in memory between two stacks of one process.
//!
//! [`pair`] gives the two ends, each a [`Port`](towpath_pool::Port) for one thread. A frame is
//! copied out of the buffers of the stack that sends it. When the other stack looks for frames,
//! it is copied into buffers of that stack. Checksums and segments are left as they are: frames
//! of up to 64 KiB cross the link whole.
//!
//! # Backpressure
//! Each direction holds at most [`FRAMES_MAX`] frames and [`BYTES_MAX`] bytes. A full direction
//! refuses frames, which stay with their stack, and wakes the sender when half of it is free. So
//! the link loses nothing while both ends are there; [`Counters`] tell of every frame that it
//! drops.
//!
//! # Ends
//! An end that is dropped leaves the frames that it sent: the other end gets all of them before
//! [`is_gone`](towpath_pool::Port::is_gone) tells that nothing more comes.
//!
//! # Example
//! ```
//! use towpath_channel::pair;
//! use towpath_pool::{Batch, LinkType, Pool, Port};
//!
//! let (mut one, mut other) = pair(LinkType::Ip, 1500)?;
//! let (mut pool, mut batch) = (Pool::default(), Batch::new());
//! let mut packet = pool.take(5);
//! packet.push_back(5).expect("taken with room").copy_from_slice(b"frame");
//! batch.push_back(packet);
//! assert_eq!(one.submit(0, &mut pool, &mut batch), 1);
//!
//! // Another stack has another pool.
//! let mut pool = Pool::default();
//! assert_eq!(other.poll(7, &mut pool, &mut batch, 64), 1);
//! assert_eq!(batch[0].linear(), b"frame");
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod channel;
mod way;

pub use channel::{ChannelPort, Counters, pair};
pub use way::{BYTES_MAX, FRAMES_MAX};
