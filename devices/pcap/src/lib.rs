//! Packet captures: writes pcapng files for Wireshark, tshark and tcpdump.
//!
//! A capture is one pcapng section with any number of interfaces. Each packet has its time in
//! nanoseconds and its direction. A dropped packet has the reason as a comment.
//!
//! ```
//! use towpath_pcap::{Direction, Interface, CaptureLinkType, Writer};
//! # fn main() -> std::io::Result<()> {
//! let eth = Interface { name: "eth0", link_type: CaptureLinkType::Ethernet };
//! let mut writer = Writer::new(Vec::new(), &[eth])?;
//! let (header, payload) = (&[0u8; 54][..], &b"GET /"[..]);
//! writer.packet(0, 1_700_000_000_000_000_000, Direction::Outbound, None, &[header, payload], 59)?;
//! let file = writer.into_inner()?;
//! assert_eq!(file.len() % 4, 0);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod capture;
mod file;
mod spool;
mod writer;

pub use capture::{Capture, CaptureFile, Limits, Warning};
pub use file::RecordFile;
pub use writer::{CaptureLinkType, Direction, Interface, SNAPLEN_DEFAULT, Writer};
