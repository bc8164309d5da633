//! Four examples of a host with its queue and device: ping, on-off traffic, bulk sending, and
//! traffic control.
//!
//! Options (`options`) are converted to the text of a scenario, which users can modify and run, and
//! to an [`Example`]. Its [`ExampleReport`] has lines over time (`lines`): echo replies, backlog of
//! the queue, bytes in the device, and packets sent. A summary (`summary`) lists the latency with
//! and without load, and with and without byte queue limits. Frames written directly to a device
//! need no network, and have event loops of their own (`frames`, `device_frames`).

mod device_frames;
mod example;
mod frames;
mod lines;
mod load;
mod options;
mod report;
mod send;
mod summary;

pub use example::Example;
pub use lines::text;
pub use load::Load;
pub use options::{
    Bql, CardOptions, LoadTransport, OnOffOptions, PingOptions, RealCard, TcOptions,
};
pub use report::ExampleReport;
pub use send::{SendMode, SendOptions};
pub use summary::{EchoReply, Latency};
