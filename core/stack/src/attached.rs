//! Ports (devices) of a stack, and the interfaces that belong to them.

use towpath_pool::{Pool, Port};
use towpath_tcp::Instant;

use crate::host::Host;
use crate::net::IfaceId;
use crate::socket::SocketRole;
use crate::stack::Stack;

/// An entry in the list of ports that is passed to [`Stack::turn`].
pub trait StackPort {
    /// Type of the port in the entry.
    type Port: Port + ?Sized;

    /// Returns the port, and the interface for which it sends and receives. `place` is the index of
    /// the entry in the list.
    fn parts(&mut self, place: usize) -> (IfaceId, &mut Self::Port);
}

/// Ports in a plain list, for a stack whose interfaces are never removed: port `i` serves interface
/// `i + 1`.
impl<P: Port + ?Sized> StackPort for Box<P> {
    type Port = P;

    #[inline]
    fn parts(&mut self, place: usize) -> (IfaceId, &mut P) {
        (IfaceId(place as u16 + 1), self)
    }
}

/// A port together with the interface for which it sends and receives.
#[derive(Debug)]
pub struct AttachedPort<P: ?Sized> {
    /// Interface for which the port sends and receives.
    pub iface: IfaceId,
    /// The port (device) itself.
    pub port: Box<P>,
}

impl<P: Port + ?Sized> StackPort for AttachedPort<P> {
    type Port = P;

    #[inline]
    fn parts(&mut self, _: usize) -> (IfaceId, &mut P) {
        (self.iface, &mut self.port)
    }
}

impl<H: Host> Stack<H> {
    /// Drops the packets queued for a removed interface, and ends the multicast memberships of
    /// sockets on this interface.
    ///
    /// The owner of the stack calls this in each shard (each stack of the host) after
    /// [`Change::RemoveInterface`](crate::net::Change::RemoveInterface), once no port serves the
    /// interface. The call visits every socket of the shard.
    pub fn detach(&mut self, now: Instant, iface: IfaceId, pool: &mut Pool) {
        self.net.catch_up();
        self.net.drop_output(iface, pool);
        let mut ended = Vec::new();
        for (_, socket) in self.sockets.iter_mut() {
            if let SocketRole::Datagram(datagram) = &mut socket.kind {
                ended.extend(datagram.memberships.extract_if(.., |it| it.iface == iface));
            }
        }
        ended.iter().for_each(|membership| self.end_membership(now, membership));
    }
}
