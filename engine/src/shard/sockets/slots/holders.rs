//! [`Holders`], the processes that have a descriptor of a socket.

use std::ops::{Deref, DerefMut};

use towpath_ring::LastEvent;

use crate::ids::ChannelId;

/// A process that has a descriptor of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub id: ChannelId,
    /// Last event of the socket of which the process was notified.
    pub last: LastEvent,
}

/// The processes that have a descriptor of a socket: usually one, but several if worker processes
/// share a listener.
#[derive(Debug, Default)]
pub(crate) enum Holders {
    #[default]
    None,
    /// No process: the socket is a connection in an accept queue. Contains the slot and generation
    /// of the listener.
    Unclaimed(u32, u32),
    One(Holder),
    // The vector is in a box, because a box takes one word in each socket, and a vector three.
    #[allow(clippy::box_collection, reason = "most sockets have one holder")]
    Many(Box<Vec<Holder>>),
}

const _: () = assert!(size_of::<Holders>() == 16);

impl Deref for Holders {
    type Target = [Holder];

    fn deref(&self) -> &[Holder] {
        match self {
            Holders::None | Holders::Unclaimed(..) => &[],
            Holders::One(holder) => std::slice::from_ref(holder),
            Holders::Many(holders) => holders,
        }
    }
}

impl DerefMut for Holders {
    fn deref_mut(&mut self) -> &mut [Holder] {
        match self {
            Holders::None | Holders::Unclaimed(..) => &mut [],
            Holders::One(holder) => std::slice::from_mut(holder),
            Holders::Many(holders) => holders,
        }
    }
}

impl Holders {
    pub fn push(&mut self, id: ChannelId) {
        let new = Holder { id, last: LastEvent::default() };
        match self {
            Holders::None | Holders::Unclaimed(..) => *self = Holders::One(new),
            Holders::One(first) => *self = Holders::Many(Box::new(vec![*first, new])),
            Holders::Many(holders) => holders.push(new),
        }
    }

    pub fn remove(&mut self, id: ChannelId) {
        match self {
            Holders::None | Holders::Unclaimed(..) => return,
            Holders::One(_) => {}
            Holders::Many(holders) => holders.retain(|holder| holder.id != id),
        }
        match **self {
            [last] if last.id != id => *self = Holders::One(last),
            [] | [_] => *self = Holders::None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_few_or_many() {
        let mut holders = Holders::default();
        let [a, b, c] = [1, 2, 3].map(ChannelId);
        let ids = |holders: &Holders| holders.iter().map(|it| it.id).collect::<Vec<_>>();
        holders.remove(a);
        assert!(holders.is_empty());
        holders.push(a);
        holders.remove(b);
        assert_eq!(ids(&holders), [a]);
        holders.push(b);
        holders.push(c);
        assert_eq!(ids(&holders), [a, b, c]);
        holders.remove(a);
        assert_eq!(ids(&holders), [b, c]);
        holders.remove(c);
        assert!(matches!(holders, Holders::One(last) if last.id == b));
        holders.remove(b);
        assert!(matches!(holders, Holders::None));
        // The process has no descriptor of the connection. So its removal must not remove the
        // connection from the accept queue.
        holders = Holders::Unclaimed(3, 1);
        holders.remove(a);
        assert!(matches!(holders, Holders::Unclaimed(3, 1)) && holders.is_empty());
        holders.push(a);
        assert_eq!(ids(&holders), [a]);
    }
}
