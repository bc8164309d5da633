//! The client's part of the connection establishment.

use std::os::fd::AsFd;

use towpath_shm::Fd;

use crate::device::{ClientMemory, MemifDevice};
use crate::error::LinkError;
use crate::linked::{LinkedRings, NAME};
use crate::message::{HelloLimits, InitRequest, MODE_ETHERNET, MemifMessage, VERSION};
use crate::options::MemifOptions;
use crate::socket::{self, ReceivedMessage, new_event};

/// A connection to a server, which waits for the server's next message.
#[derive(Debug)]
pub(crate) enum ClientHandshake {
    /// The limits of the server.
    Hello,
    /// The acknowledgement of a request. The memory is created after the limits are known.
    Ack(SetupStep, ClientRings),
    /// The last message.
    Connected(ClientRings),
    /// The rings were handed over.
    Done,
}

/// A request of the client, in the order in which they are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SetupStep {
    Init,
    Region,
    ToServer,
    ToClient,
}

/// Memory of a client, and the eventfds of its rings.
#[derive(Debug)]
pub(crate) struct ClientRings {
    memory: ClientMemory,
    to_server: Fd,
    to_client: Fd,
    /// Whether the server is this program.
    has_barrier: bool,
}

impl ClientHandshake {
    /// Handles a message of the server, and sends the next request. Returns the rings when the
    /// server is connected.
    pub(crate) fn handle(
        &mut self,
        socket: impl AsFd,
        received: ReceivedMessage,
        options: &MemifOptions,
    ) -> Result<Option<LinkedRings>, LinkError> {
        let state = std::mem::replace(self, Self::Done);
        *self = match (state, received.message) {
            (_, MemifMessage::Disconnect(reason)) => {
                return Err(LinkError::Disconnected(reason));
            }
            (Self::Hello, MemifMessage::Hello(hello)) => {
                let rings = ClientRings::new(&hello, options)?;
                socket::send(socket, &init(options), None)?;
                Self::Ack(SetupStep::Init, rings)
            }
            (Self::Ack(request, rings), MemifMessage::Ack) => request.next(socket, rings)?,
            (Self::Connected(rings), MemifMessage::Connected(name)) => {
                let device = MemifDevice::client(&rings.memory)?;
                let ClientRings { to_server: sent, to_client: received, has_barrier, .. } = rings;
                return Ok(Some(LinkedRings { device, received, sent, name, has_barrier }));
            }
            _ => return Err(LinkError::Unexpected),
        };
        Ok(None)
    }
}

impl SetupStep {
    /// Sends the request that follows an acknowledged one.
    fn next(self, socket: impl AsFd, rings: ClientRings) -> Result<ClientHandshake, LinkError> {
        let pair = rings.memory.rings();
        let ring = |is_to_server, spec| MemifMessage::AddRing { is_to_server, index: 0, spec };
        let (message, descriptor, next) = match self {
            Self::Init => {
                let message = MemifMessage::AddRegion { index: 0, len: rings.memory.region_len() };
                (message, Some(rings.memory.file().as_fd()), Some(Self::Region))
            }
            Self::Region => {
                (ring(true, pair.to_server), Some(rings.to_server.as_fd()), Some(Self::ToServer))
            }
            Self::ToServer => {
                (ring(false, pair.to_client), Some(rings.to_client.as_fd()), Some(Self::ToClient))
            }
            Self::ToClient => (MemifMessage::Connect(NAME.to_owned()), None, None),
        };
        socket::send(socket, &message, descriptor)?;
        Ok(match next {
            Some(next) => ClientHandshake::Ack(next, rings),
            None => ClientHandshake::Connected(rings),
        })
    }
}

impl ClientRings {
    /// Creates the memory, within the limits of the server.
    fn new(hello: &HelloLimits, options: &MemifOptions) -> Result<Self, LinkError> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Err(LinkError::Version(hello.version_max));
        }
        let log2_size = options.log2_size.min(hello.log2_size_max);
        Ok(Self {
            memory: ClientMemory::new(log2_size, options.buffer_len)?,
            to_server: new_event()?,
            to_client: new_event()?,
            has_barrier: hello.name == NAME,
        })
    }
}

fn init(options: &MemifOptions) -> MemifMessage {
    MemifMessage::Init(InitRequest {
        version: VERSION,
        id: options.id,
        mode: MODE_ETHERNET,
        secret: options.secret,
        name: NAME.to_owned(),
    })
}
