//! In-memory link between two network stacks of one process.
//!
//! [`pair`] returns the two ends, each a [`Port`](towpath_pool::Port) for one thread. A frame is
//! copied from the sending stack's buffers, and copied to the receiving stack's buffers when that
//! stack polls. Checksums and segmentation are left as they are. Therefore frames of up to 64 KiB
//! cross the link as one.
//!
//! # Backpressure
//! Each direction holds at most [`FRAMES_MAX`] frames and [`BYTES_MAX`] bytes. A full direction
//! refuses frames, which stay with their stack, and wakes the sender once it is half empty. So the
//! link loses no frames while both ends exist; [`Counters`] count every dropped frame.
//!
//! # Dropping an end
//! Frames sent by a dropped end are still delivered. Afterwards,
//! [`is_gone`](towpath_pool::Port::is_gone) of the peer end returns true.
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
//! // The other stack has its own pool.
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
