//! The interface that a socket is bound to: SO_BINDTODEVICE and SO_BINDTOIFINDEX.

use std::net::SocketAddr;

use towpath_stack::net::{IfaceId, Interface};
use towpath_stack::{SocketId, SocketOption, scope_of};

use crate::errno::{ENODEV, Errno};
use crate::shard::Shard;

impl Shard {
    /// SO_BINDTODEVICE. No name: any interface.
    pub(crate) fn bind_to_named(
        &mut self,
        slot: u32,
        id: SocketId,
        name: &[u8],
    ) -> Result<(), Errno> {
        let named = |iface: &&Interface| iface.name().as_bytes() == name;
        let iface = match name {
            [] => 0,
            _ => {
                let found = self.stack.net.interfaces().iter().find(named);
                u32::from(found.ok_or(Errno(ENODEV))?.id().0) + 1
            }
        };
        self.bind_to_device(slot, id, iface)
    }

    /// Numbers of interfaces that are not there are taken too, as on Linux: they may come.
    pub(crate) fn bind_to_device(
        &mut self,
        slot: u32,
        id: SocketId,
        index: u32,
    ) -> Result<(), Errno> {
        let device = u16::try_from(index).ok().and_then(|index| index.checked_sub(1)).map(IfaceId);
        self.stack.set_option(id, SocketOption::Device(device))?;
        if let Some(entry) = self.host.slots.get_mut(slot) {
            entry.set_rare(|rare| rare.device = index);
            self.renote(slot);
        }
        Ok(())
    }

    /// As in Linux (`__ip6_datagram_connect`), connecting to a link-local peer, whose address names
    /// the interface, binds the socket to that interface for all further traffic. An address of
    /// this host itself is excepted: it is reached over loopback.
    pub(crate) fn bind_to_scope(&mut self, slot: u32, id: SocketId, peer: &SocketAddr) {
        if let Some(iface) = scope_of(peer).filter(|_| !self.stack.net.is_local(peer.ip())) {
            // Every datagram socket can be bound to one.
            let _ = self.bind_to_device(slot, id, u32::from(iface.0) + 1);
        }
    }

    pub(crate) fn device(&self, slot: u32) -> Option<IfaceId> {
        let index = self.host.slots.get(slot).map_or(0, |entry| entry.rare().device);
        u16::try_from(index).ok()?.checked_sub(1).map(IfaceId)
    }

    /// Name of that interface; nothing for a socket that is bound to none.
    pub(crate) fn device_name(&self, slot: u32) -> Result<&[u8], Errno> {
        let Some(iface) = self.device(slot) else { return Ok(&[]) };
        let interface = self.stack.net.interfaces().get(iface.index());
        Ok(interface.ok_or(Errno(ENODEV))?.name().as_bytes())
    }
}
