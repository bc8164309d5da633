//! Multicast groups that the program's netlink sockets have joined.
//!
//! Membership is recorded here only. The underlying kernel socket joins no groups, because any
//! process may send to groups of NETLINK_USERSOCK.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::Result;
use crate::errno::fail;

/// Maximum number of netlink sockets that can join groups. Programs that monitor interfaces use one
/// or two.
const SOCKETS_MAX: usize = 64;
/// Highest number of a multicast group of NETLINK_ROUTE (RTNLGRP_MAX of Linux 6.18).
const GROUPS_MAX: u32 = 39;

/// Table of the netlink sockets of a process that have ever joined a multicast group.
#[derive(Debug)]
pub(crate) struct NetlinkGroups([GroupMember; SOCKETS_MAX]);

#[derive(Debug)]
struct GroupMember {
    /// Descriptor number of the socket plus one. 0: the entry is free.
    socket: AtomicU32,
    /// Multicast groups that the socket has joined. Bit n - 1 stands for group n.
    joined: AtomicU64,
}

impl GroupMember {
    const fn new() -> Self {
        Self { socket: AtomicU32::new(0), joined: AtomicU64::new(0) }
    }
}

impl NetlinkGroups {
    /// Creates an empty table, which consists of zero bytes only.
    pub const fn new() -> Self {
        Self([const { GroupMember::new() }; SOCKETS_MAX])
    }

    /// Returns the multicast groups of a netlink socket as bits, with group 1 in the lowest bit.
    /// None: the socket has never joined a group.
    pub fn of(&self, fd: i32) -> Option<u64> {
        self.find(fd).map(|entry| entry.joined.load(Relaxed))
    }

    /// Removes the entry of a descriptor number, because a new socket now has this number.
    pub fn forget(&self, fd: i32) {
        if let Some(entry) = self.find(fd) {
            entry.joined.store(0, Relaxed);
            entry.socket.store(0, Relaxed);
        }
    }

    /// Joins or leaves a multicast group, for NETLINK_ADD_MEMBERSHIP and NETLINK_DROP_MEMBERSHIP.
    ///
    /// # Errors
    /// EINVAL if the group does not exist; ENOMEM if the table is full.
    pub fn change(&self, fd: i32, group: u32, joins: bool) -> Result<()> {
        if !(1..=GROUPS_MAX).contains(&group) {
            return fail(libc::EINVAL);
        }
        let bit = 1 << (group - 1);
        let joined = &self.entry(fd)?.joined;
        match joins {
            true => joined.fetch_or(bit, Relaxed),
            false => joined.fetch_and(!bit, Relaxed),
        };
        Ok(())
    }

    /// Sets membership in the groups 1 to 32, which bind(2) passes as bits. Membership in higher
    /// groups does not change.
    ///
    /// # Errors
    /// ENOMEM if the table is full.
    pub fn bind(&self, fd: i32, groups: u32) -> Result<()> {
        if groups == 0 && self.find(fd).is_none() {
            return Ok(());
        }
        let joined = &self.entry(fd)?.joined;
        let others = joined.load(Relaxed) & !u64::from(u32::MAX);
        joined.store(others | u64::from(groups), Relaxed);
        Ok(())
    }

    fn find(&self, fd: i32) -> Option<&GroupMember> {
        let word = u32::try_from(fd).ok()? + 1;
        self.0.iter().find(|entry| entry.socket.load(Relaxed) == word)
    }

    fn entry(&self, fd: i32) -> Result<&GroupMember> {
        if let Some(entry) = self.find(fd) {
            return Ok(entry);
        }
        let take = |entry: &&GroupMember| {
            entry.socket.compare_exchange(0, fd as u32 + 1, Relaxed, Relaxed).is_ok()
        };
        self.0.iter().find(take).map_or(fail(libc::ENOMEM), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn groups_are_those_of_a_socket() {
        let groups = NetlinkGroups::new();
        assert_eq!((groups.change(3, 0, true), groups.of(3)), (Err(Errno(libc::EINVAL)), None));
        assert_eq!(groups.change(3, GROUPS_MAX + 1, true), Err(Errno(libc::EINVAL)));
        assert_eq!(groups.bind(3, 0), Ok(()));
        assert_eq!(groups.of(3), None);
        for (group, joined) in [(5, 0x10), (33, 0x1_0000_0010)] {
            groups.change(3, group, true).unwrap();
            assert_eq!(groups.of(3), Some(joined));
        }
        groups.change(3, 5, false).unwrap();
        groups.bind(3, 0x11).unwrap();
        assert_eq!((groups.of(3), groups.of(4)), (Some(0x1_0000_0011), None));
        groups.forget(3);
        assert_eq!(groups.of(3), None);
    }

    #[test]
    fn the_groups_of_so_many_sockets_are_kept() {
        let groups = NetlinkGroups::new();
        let most = SOCKETS_MAX as i32;
        assert!((0..most).all(|fd| groups.change(fd, 1, true).is_ok()));
        assert_eq!(groups.change(most, 1, true), Err(Errno(libc::ENOMEM)));
        groups.forget(7);
        assert_eq!(groups.change(most, 1, true), Ok(()));
    }
}
