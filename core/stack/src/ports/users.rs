//! Connections, including those in TIME-WAIT, that use a port without a bind of their own socket.
//! Each shard (stack) has its own table.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use crate::ports::bind_addr::{BindAddr, Sharing};
use crate::ports::holds::{HolderClass, PortHolder};
use crate::ports::port_set::PortSet;

/// Local address and sharing options of connections on a port. The connections may be in TIME-WAIT.
type User = (IpAddr, Sharing);

/// Connections that use a port. Usually all of them have the same local address, so only their
/// number is stored.
#[derive(Debug)]
enum UsedPort {
    /// Number of connections, all of which have the same local address and options.
    Alike(User, u32),
    /// Number of connections for each local address and set of options. A port may be used with
    /// every address of a host, so there may be many.
    #[expect(clippy::box_collection, reason = "a map in place would make every entry larger")]
    Several(Box<BTreeMap<User, u32>>),
}

const _: () = assert!(size_of::<UsedPort>() <= 24);

impl UsedPort {
    /// Returns whether `is` returns true for a connection on the port. Only connections whose local
    /// address may overlap the address of `wanted` are checked.
    fn any_user(&self, wanted: &PortHolder, mut is: impl FnMut(&User) -> bool) -> bool {
        match self {
            UsedPort::Alike(user, _) => is(user),
            UsedPort::Several(users) => match wanted.addr {
                BindAddr::Ip(ip) => {
                    let all = Sharing { reuse_addr: true, reuse_port: true };
                    users.range((ip, Sharing::default())..=(ip, all)).any(|(user, _)| is(user))
                }
                _ => users.keys().any(is),
            },
        }
    }

    fn is_unused(&self) -> bool {
        match self {
            UsedPort::Alike(_, count) => *count == 0,
            UsedPort::Several(users) => users.is_empty(),
        }
    }

    /// Returns the connections of the port as a list. Converts the short form to a list if
    /// necessary.
    fn list(&mut self) -> &mut BTreeMap<User, u32> {
        if let UsedPort::Alike(user, count) = *self {
            *self = UsedPort::Several(Box::new(BTreeMap::from([(user, count)])));
        }
        match self {
            UsedPort::Several(users) => users,
            UsedPort::Alike(..) => unreachable!("it was just changed"),
        }
    }
}

/// Table of the ports that the connections of one shard (stack) use.
#[derive(Debug)]
pub(crate) struct Users {
    ports: BTreeMap<u16, UsedPort>,
    /// Set of the ports in `ports`, which can be read without a lock.
    occupied: Arc<PortSet>,
}

impl Users {
    /// Creates an empty table. The table also stores the ports in use in the set `occupied`.
    pub fn new(occupied: Arc<PortSet>) -> Self {
        Self { ports: BTreeMap::new(), occupied }
    }

    /// Returns the number of ports in use.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns whether a connection on `port`, possibly in TIME-WAIT, conflicts with a bind as
    /// `wanted`.
    pub fn are_in_way(&self, port: u16, wanted: &PortHolder) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# an OPEN call that will functionally allow an application to LISTEN on a port while a
        //# connection block with the same local port is in SYN-SENT or SYN-RECEIVED state
        //# (MUST-42).
        self.ports.get(&port).is_some_and(|users| {
            users.any_user(wanted, |(local, sharing)| {
                BindAddr::Ip(*local).overlaps(wanted.addr)
                    && !wanted.may_join(HolderClass { sharing: *sharing, listening: false })
            })
        })
    }

    /// Adds a connection, possibly in TIME-WAIT, that uses `port` at the address `local`.
    pub fn add(&mut self, port: u16, local: IpAddr, sharing: Sharing) {
        self.occupied.set(port, true);
        let new = (local, sharing);
        match self.ports.entry(port) {
            Entry::Vacant(entry) => {
                entry.insert(UsedPort::Alike(new, 1));
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                UsedPort::Alike(user, count) if *user == new => *count += 1,
                port => *port.list().entry(new).or_default() += 1,
            },
        }
    }

    /// Removes a connection that [`Users::add`] added.
    pub fn remove(&mut self, port: u16, local: IpAddr, sharing: Sharing) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        let gone = (local, sharing);
        match entry {
            UsedPort::Alike(user, count) if *user == gone => *count -= 1,
            UsedPort::Alike(..) => {}
            UsedPort::Several(users) => {
                if let Some(count) = users.get_mut(&gone) {
                    *count -= 1;
                    if *count == 0 {
                        users.remove(&gone);
                    }
                }
            }
        }
        if entry.is_unused() {
            self.ports.remove(&port);
            self.occupied.set(port, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BindAddr::{AnyV4, Ip};

    const PLAIN: Sharing = Sharing { reuse_addr: false, reuse_port: false };
    const ADDR: Sharing = Sharing { reuse_addr: true, reuse_port: false };

    #[test]
    fn what_is_left_of_connections_blocks_unless_both_reuse() {
        let mut users = Users::new(Arc::default());
        let local = IpAddr::from([10, 0, 0, 1]);
        users.add(80, local, ADDR);
        let wanted = |sharing| PortHolder {
            socket: 2,
            addr: AnyV4,
            sharing,
            listening: false,
            device: None,
        };
        assert!(users.are_in_way(80, &wanted(PLAIN)));
        assert!(!users.are_in_way(80, &wanted(ADDR)));
        users.remove(80, local, ADDR);
        assert!(!users.are_in_way(80, &wanted(PLAIN)));
        assert_eq!(users.len(), 0);
    }

    /// A port is used with 1000 local addresses, as on a host with many addresses, or with
    /// IP_FREEBIND.
    #[test]
    fn users_of_a_port_are_counted_by_address() {
        let mut users = Users::new(Arc::default());
        let local = |n: u32| IpAddr::from(n.to_be_bytes());
        let wanted = |n| PortHolder {
            socket: 1,
            addr: Ip(local(n)),
            sharing: PLAIN,
            listening: false,
            device: None,
        };
        for n in 0..1000 {
            users.add(80, local(n), PLAIN);
            users.add(80, local(n), PLAIN);
        }
        for n in 0..1000 {
            assert!(!users.are_in_way(80, &wanted(1000)));
            users.remove(80, local(n), PLAIN);
            assert!(users.are_in_way(80, &wanted(n)), "one is left");
            users.remove(80, local(n), PLAIN);
            assert!(!users.are_in_way(80, &wanted(n)));
        }
        assert_eq!(users.len(), 0);
    }
}
