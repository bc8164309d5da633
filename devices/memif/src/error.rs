//! Reasons why a connection was closed.

use std::io;

use crate::memory::SharedMemoryError;
use crate::message::{MemifMessage, VERSION};
use crate::ring::RingFault;

/// Reason why the connection to a peer was closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer has closed the connection.
    #[error("the peer has closed the connection")]
    Closed,
    /// The peer has ended the connection, for this reason.
    #[error("the peer has disconnected: {0}")]
    Disconnected(String),
    /// A system call failed.
    #[error("a system call failed: {0}")]
    Io(#[from] io::Error),
    /// The length of a message is invalid.
    #[error("a message of {0} bytes: expected 128")]
    Length(usize),
    /// The type of a message is unknown.
    #[error("a message of an unknown type")]
    Unknown,
    /// A message has no descriptor, or more than one.
    #[error("a message with the wrong number of descriptors")]
    Descriptors,
    /// A descriptor for notifications is another file, to which writing could block or fail.
    #[error("a descriptor for notifications is no eventfd")]
    NoEventfd,
    /// The client has sent no message for a long time before it was connected.
    #[error("the client has connected to the socket, and was silent for 5 s")]
    Silent,
    /// The message must not follow the previous ones.
    #[error("an unexpected message")]
    Unexpected,
    /// The peer has another version of the protocol.
    #[error("version {}.{} of memif: expected 2.0", .0 >> 8, .0 & 0xff)]
    Version(u16),
    /// The client asks for an interface with another number.
    #[error("there is no interface with id={0}")]
    Id(u32),
    /// The client wants to send packets without Ethernet headers.
    #[error("mode {0} is not supported: expected Ethernet")]
    Mode(u8),
    /// The client has not sent the secret of the server.
    #[error("the secret is wrong")]
    Secret,
    /// The client adds a region out of order.
    #[error("region {0} is out of order")]
    Region(u16),
    /// The client adds a ring that does not exist, or a second time.
    #[error("ring {0} is not supported: expected one ring 0 in each direction")]
    Ring(u16),
    /// The memory of the client cannot be used.
    #[error("the client's memory cannot be used: {0}")]
    Memory(#[from] SharedMemoryError),
    /// A ring is invalid, or the peer has written invalid data to it.
    #[error("a ring is invalid: {0}")]
    Fault(#[from] RingFault),
}

impl LinkError {
    /// Returns the message that tells the peer the reason. `None` if the peer has closed the
    /// connection.
    pub(crate) fn message(&self) -> Option<MemifMessage> {
        match self {
            Self::Closed | Self::Disconnected(_) | Self::Io(_) => None,
            error => Some(MemifMessage::Disconnect(error.to_string())),
        }
    }

    /// Checks the version that the peer has chosen.
    pub(crate) fn check_version(version: u16) -> Result<(), Self> {
        if version == VERSION { Ok(()) } else { Err(Self::Version(version)) }
    }
}
