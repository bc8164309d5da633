//! Event handlers that run on the stack's own thread, and access bytes directly in its buffers.
//!
//! A [`Handler`] is called when a connection is accepted, receives bytes, has room to send again,
//! or ends. The call runs on the thread that handles the packets, without a queue, a wake-up or a
//! system call in between. A [`ByteReader`] borrows bytes from the receive buffer, and a
//! [`ByteWriter`] writes into the send buffer.
//!
//! ```
//! use towpath::Stack;
//! use towpath::handler::{Conn, ConnAction, Handler};
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type State = ();
//!
//!     fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
//!         let (mut reader, mut writer) = conn.split();
//!         writer.forward(&mut reader);
//!         if reader.is_empty() { ConnAction::Continue } else { ConnAction::AwaitRoom }
//!     }
//! }
//!
//! let builder = Stack::builder().rootless().publish("127.0.0.1::7");
//! let stack = builder.serve("0.0.0.0:7", |_shard| Echo).start()?;
//!
//! use std::io::{Read, Write};
//! let mut client = std::net::TcpStream::connect(stack.published()[0].host)?;
//! client.write_all(b"down the towpath")?;
//! let mut echo = [0; 16];
//! client.read_exact(&mut echo)?;
//! assert_eq!(&echo, b"down the towpath");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Builder::serve`](crate::Builder::serve) works with every kind of link. The sockets of
//! [`crate::net`] work on the same stack.
//!
//! # Design
//!
//! ```text
//!   packets ─► stack ─► receive buffer ─► readable(conn) ─► send buffer ─► stack ─► packets
//!              └──────────────── one turn of one thread ────────────────┘
//! ```
//!
//! - A handler is a service of the engine: its sockets have buffers in private memory. A connection
//!   uses no descriptor, and none of the shared memory that sockets of [`crate::net`] use.
//! - Each handler has one state for each of its connections ([`Handler::State`]), so the handler
//!   itself is the state of a thread. No lock protects either.
//! - [`ConnAction`] is the result of a call, and backpressure: a connection that awaits room, or is
//!   paused, is not called with further bytes. Its receive buffer fills, and TCP's window closes.
//! - A call must not block, because all connections of the thread wait meanwhile.
//!   [`HandlerCounters::slow`] counts calls that took longer than 1 ms. [`HandlerRemote`] resumes a
//!   connection after another thread has done the work.
//! - Each connection has one timer, in a timer wheel of the stack. Times are rounded up to 66 µs.
//! - No call allocates memory, except for the first bytes of a connection, and for bytes that
//!   [`ByteReader::slice`] keeps.
//!
//! # Panics and the end
//!
//! A panic of a handler resets the connection of the call, and is counted; other connections
//! continue. If the program is built with `panic = "abort"`, a panic ends the process, as anywhere.
//!
//! When the stack ends, it resets the handlers' connections, and drops their states without calling
//! [`Handler::closed`].

mod byte_reader;
mod byte_writer;
mod conn;
mod conn_action;
mod conn_table;
mod counters;
mod handler_remote;
mod handler_shard;
mod handler_trait;
mod options;
mod serve;
mod service;
mod service_core;
mod services;

pub use byte_reader::ByteReader;
pub use byte_writer::{ByteWriter, ReservedBytes};
pub use conn::{Conn, ConnId};
pub use conn_action::{CloseReason, ConnAction};
pub use counters::HandlerCounters;
pub use handler_remote::HandlerRemote;
pub use handler_shard::{HandlerShard, UdpId};
pub use handler_trait::Handler;
pub use options::ServeOptions;
pub use towpath_ring::KeptBytes;

pub(crate) use counters::SharedCounters;
pub(crate) use options::HandlerSpec;
pub(crate) use services::HandlerServices;
