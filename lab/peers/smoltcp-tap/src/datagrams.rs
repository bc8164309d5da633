//! Datagrams that are echoed, and datagrams that are counted.

use std::error::Error;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::udp::{BindError, PacketBuffer, PacketMetadata, Socket};

/// Maximum number of datagrams and bytes in a socket's buffer. The bytes equal the default of
/// Linux.
const HELD: usize = 256;
const HELD_BYTES: usize = 208 << 10;

pub struct Datagrams {
    returned: SocketHandle,
    counted: SocketHandle,
    count: u64,
}

impl Datagrams {
    pub fn new(sockets: &mut SocketSet<'_>, port: u16) -> Result<Self, Box<dyn Error>> {
        let returned = sockets.add(bound(port)?);
        let counted = sockets.add(bound(port + 1)?);
        Ok(Self { returned, counted, count: 0 })
    }

    /// Serves the sockets. Returns whether any had data.
    pub fn serve(&mut self, sockets: &mut SocketSet<'_>, bytes: &mut [u8]) -> bool {
        let mut is_busy = false;
        let socket = sockets.get_mut::<Socket>(self.returned);
        while socket.can_send() {
            let Ok((len, from)) = socket.recv_slice(bytes) else { break };
            is_busy = true;
            // Drop a datagram that cannot be sent.
            let _ = socket.send_slice(&bytes[..len], from.endpoint);
        }
        let socket = sockets.get_mut::<Socket>(self.counted);
        while let Ok((len, from)) = socket.recv_slice(bytes) {
            is_busy = true;
            if len == 1 {
                let _ = socket.send_slice(&self.count.to_be_bytes(), from.endpoint);
            } else {
                self.count += 1;
            }
        }
        is_busy
    }
}

fn bound(port: u16) -> Result<Socket<'static>, BindError> {
    let buffer = || PacketBuffer::new(vec![PacketMetadata::EMPTY; HELD], vec![0; HELD_BYTES]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.bind(port)?;
    Ok(socket)
}
