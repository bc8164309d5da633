//! Four examples of a host, its queue and its device: ping, on-off traffic, bulk sending, and
//! traffic control.
//!
//! Options (`options`) become the text of a scenario, which anybody can change and run, and an
//! [`Example`]. Its [`ExampleReport`] shows lines over time (`lines`): echo replies, the backlog of
//! the queue, the bytes in the device, and the packets sent. The latency with and without load, and
//! with and without byte queue limits, stands at the end (`summary`). Frames that are written into
//! a device directly need no network, and have a loop of their own (`frames`).

mod example;
mod frames;
mod lines;
mod load;
mod options;
mod report;
mod summary;

pub use example::Example;
pub use lines::text;
pub use load::Load;
pub use options::{
    Bql, CardOptions, LoadTransport, OnOffOptions, PingOptions, SendMode, SendOptions, TcOptions,
};
pub use report::ExampleReport;
pub use summary::{EchoReply, Latency};
