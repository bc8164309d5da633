//! The interface that a socket is bound to: SO_BINDTODEVICE and SO_BINDTOIFINDEX.

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

    /// Binds to an interface index. Unknown indexes are accepted, as on Linux, because the
    /// interface may be added later.
    pub(crate) fn bind_to_device(&mut self, id: SocketId, index: u32) -> Result<(), Errno> {
        let device = u16::try_from(index).ok().and_then(|index| index.checked_sub(1)).map(IfaceId);
        self.net.stack.set_option(id, SocketOption::Device(device))?;
        if let Some(entry) = self.sockets.slots.get_mut(self.slot) {
            entry.set_rare(|rare| rare.device = index);
            self.sockets.update_note(self.net, self.slot);
        }
        Ok(())
    }

    /// Binds the socket to the interface of a link-local peer when it connects. Linux does so in
    /// `__ip6_datagram_connect`. Addresses of this host are excepted, because they are reached over
    /// loopback.
    pub(crate) fn bind_to_scope(&mut self, id: SocketId, peer: &SocketAddr) {
        if let Some(iface) = scope_of(peer).filter(|_| !self.net.stack.net.is_local(peer.ip())) {
            // The option cannot fail for datagram sockets.
            let _ = self.bind_to_device(id, u32::from(iface.0) + 1);
        }
    }

    /// Returns the name of the bound interface; empty if there is none.
    pub(crate) fn device_name(&self) -> Result<&[u8], Errno> {
        let Some(iface) = self.sockets.device(self.slot) else { return Ok(&[]) };
        let interface = self.net.stack.net.interface(iface);
        Ok(interface.ok_or(Errno(ENODEV))?.name().as_bytes())
    }
}
