//! Binds a socket to an interface: SO_BINDTODEVICE and SO_BINDTOIFINDEX.

use std::net::SocketAddr;

use towpath_stack::net::{IfaceId, Interface};
use towpath_stack::{SocketId, SocketOption, scope_of};

use crate::errno::{ENODEV, Errno};
use crate::shard::sockets::options::SocketOptions;

impl SocketOptions<'_> {
    /// Sets SO_BINDTODEVICE. An empty name selects any interface.
    pub(crate) fn bind_to_named(&mut self, id: SocketId, name: &[u8]) -> Result<(), Errno> {
        let named = |iface: &&Interface| iface.name().as_bytes() == name;
        let iface = match name {
            [] => 0,
            _ => {
                let found = self.net.stack.net.interfaces().find(named);
                u32::from(found.ok_or(Errno(ENODEV))?.id().0) + 1
            }
        };
        self.bind_to_device(id, iface)
    }

    /// Binds a socket to the interface with an index. As on Linux, accepts an unknown index,
    /// because the interface may be added later.
    pub(crate) fn bind_to_device(&mut self, id: SocketId, index: u32) -> Result<(), Errno> {
        let device = u16::try_from(index).ok().and_then(|index| index.checked_sub(1)).map(IfaceId);
        self.net.stack.set_option(id, SocketOption::Device(device))?;
        if let Some(entry) = self.sockets.slots.get_mut(self.slot) {
            entry.set_rare(|rare| rare.device = index);
            self.sockets.update_note(self.net, self.slot);
        }
        Ok(())
    }

    /// Binds a socket that connects to a link-local address to the interface of that address, like
    /// Linux's `__ip6_datagram_connect`. Does nothing for addresses of this host, which are reached
    /// over loopback.
    pub(crate) fn bind_to_scope(&mut self, id: SocketId, peer: &SocketAddr) {
        if let Some(iface) = scope_of(peer).filter(|_| !self.net.stack.net.is_local(peer.ip())) {
            // Ignore the result: the option cannot fail for a datagram socket.
            let _ = self.bind_to_device(id, u32::from(iface.0) + 1);
        }
    }

    /// Returns the name of the interface to which the socket is bound. Empty if it is not bound to
    /// one.
    pub(crate) fn device_name(&self) -> Result<&[u8], Errno> {
        let Some(iface) = self.sockets.device(self.slot) else { return Ok(&[]) };
        let interface = self.net.stack.net.interface(iface);
        Ok(interface.ok_or(Errno(ENODEV))?.name().as_bytes())
    }
}
