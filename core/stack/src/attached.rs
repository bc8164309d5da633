//! Ports of a stack, and the interfaces that they drive.

use towpath_pool::{Pool, Port};
use towpath_tcp::Instant;

use crate::host::Host;
use crate::net::IfaceId;
use crate::socket::SocketRole;
use crate::stack::Stack;

/// A port in the list of [`Stack::turn`].
pub trait StackPort {
    /// Type of the port.
    type Port: Port + ?Sized;

    /// Returns the interface that the port drives, and the port. `place` is its index in the list.
    fn parts(&mut self, place: usize) -> (IfaceId, &mut Self::Port);
}

/// The ports of a stack whose interfaces are never removed: port `i` drives interface `i + 1`.
impl<P: Port + ?Sized> StackPort for Box<P> {
    type Port = P;

    #[inline]
    fn parts(&mut self, place: usize) -> (IfaceId, &mut P) {
        (IfaceId(place as u16 + 1), self)
    }
}

/// A port that drives a given interface.
#[derive(Debug)]
pub struct AttachedPort<P: ?Sized> {
    /// Interface that the port drives.
    pub iface: IfaceId,
    /// The port.
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
    /// Drops the packets that are queued for a removed interface, and ends the memberships of
    /// sockets there. The owner calls this in each shard after
    /// [`Change::RemoveInterface`](crate::net::Change::RemoveInterface), when no port drives the
    /// interface any more. Visits every socket of the shard.
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
