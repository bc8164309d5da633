//! The server's part of the connection establishment.

use std::os::fd::AsFd;

use towpath_shm::Fd;

use crate::device::{MemifDevice, RingPair};
use crate::error::LinkError;
use crate::layout::LOG2_SIZE_MAX;
use crate::linked::{LinkedRings, NAME};
use crate::memory::{REGIONS_MAX, SharedMemory};
use crate::message::{HelloLimits, InitRequest, MODE_ETHERNET, MemifMessage, VERSION};
use crate::options::MemifOptions;
use crate::ring::RingSpec;
use crate::socket::{self, ReceivedMessage, peer_event};

/// A client that is about to connect.
#[derive(Debug, Default)]
pub(crate) struct ServerHandshake {
    /// Name of the client's program, after it has named this interface.
    program: Option<String>,
    memory: SharedMemory,
    to_server: Option<OfferedRing>,
    to_client: Option<OfferedRing>,
}

/// A ring of the client.
#[derive(Debug)]
struct OfferedRing {
    spec: RingSpec,
    /// Eventfd by which the sender notifies the receiver.
    event: Fd,
}

impl ServerHandshake {
    /// Sends the limits of this server to a client that has connected.
    pub(crate) fn start(socket: impl AsFd) -> Result<Self, LinkError> {
        let hello = MemifMessage::Hello(HelloLimits {
            name: NAME.to_owned(),
            version_min: VERSION,
            version_max: VERSION,
            region_max: REGIONS_MAX as u16 - 1,
            // There is one ring in each direction, with the index 0.
            to_client_max: 0,
            to_server_max: 0,
            log2_size_max: LOG2_SIZE_MAX,
        });
        socket::send(socket, &hello, None)?;
        Ok(Self::default())
    }

    /// Carries out a request, and answers it. Returns the rings when the client is connected.
    pub(crate) fn handle(
        &mut self,
        socket: impl AsFd,
        received: ReceivedMessage,
        options: &MemifOptions,
    ) -> Result<Option<LinkedRings>, LinkError> {
        let ReceivedMessage { message, descriptor } = received;
        match message {
            MemifMessage::Init(init) if self.program.is_none() => {
                check(&init, options)?;
                self.program = Some(init.name);
            }
            MemifMessage::AddRegion { index, len } if self.program.is_some() => {
                if usize::from(index) != self.memory.len() {
                    return Err(LinkError::Region(index));
                }
                self.memory.add(len, descriptor.ok_or(LinkError::Descriptors)?)?;
            }
            MemifMessage::AddRing { is_to_server, index, spec } if self.program.is_some() => {
                let event = peer_event(descriptor)?;
                let ring = if is_to_server { &mut self.to_server } else { &mut self.to_client };
                if index != 0 || ring.is_some() {
                    return Err(LinkError::Ring(index));
                }
                *ring = Some(OfferedRing { spec, event });
            }
            MemifMessage::Connect(name) if self.program.is_some() => {
                let linked = self.connect(name)?;
                socket::send(socket, &MemifMessage::Connected(NAME.to_owned()), None)?;
                return Ok(Some(linked));
            }
            MemifMessage::Disconnect(reason) => return Err(LinkError::Disconnected(reason)),
            _ => return Err(LinkError::Unexpected),
        }
        socket::send(socket, &MemifMessage::Ack, None)?;
        Ok(None)
    }

    fn connect(&mut self, name: String) -> Result<LinkedRings, LinkError> {
        let rings = self.to_server.take().zip(self.to_client.take());
        let (to_server, to_client) = rings.ok_or(LinkError::Unexpected)?;
        let pair = RingPair { to_server: to_server.spec, to_client: to_client.spec };
        let device = MemifDevice::server(std::mem::take(&mut self.memory), pair)?;
        let has_barrier = self.program.as_deref() == Some(NAME);
        let (received, sent) = (to_server.event, to_client.event);
        Ok(LinkedRings { device, received, sent, name, has_barrier })
    }
}

/// Checks whether a client means this interface, and may connect to it.
fn check(init: &InitRequest, options: &MemifOptions) -> Result<(), LinkError> {
    LinkError::check_version(init.version)?;
    if init.id != options.id {
        return Err(LinkError::Id(init.id));
    }
    if init.mode != MODE_ETHERNET {
        return Err(LinkError::Mode(init.mode));
    }
    let len = init.secret.iter().position(|byte| *byte == 0).unwrap_or(init.secret.len());
    let wanted = options.secret.iter().position(|byte| *byte == 0);
    let wanted = &options.secret[..wanted.unwrap_or(options.secret.len())];
    if !wanted.is_empty() && *wanted != init.secret[..len] {
        return Err(LinkError::Secret);
    }
    Ok(())
}
