//! Requests for dumps.

use crate::attributes::{HEADER_LEN, put_attribute};
use crate::message::{RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWNEXTHOP, RTM_NEWROUTE};
use crate::route::{RTA_TABLE, RTMSG_LEN};

/// Kind of objects to dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpRequest {
    /// All interfaces.
    Links,
    /// All addresses.
    Addresses,
    /// The IPv4 routes of a table.
    RoutesV4(u32),
    /// The IPv6 routes of a table.
    RoutesV6(u32),
    /// All next-hop objects.
    NextHops,
    /// All neighbours.
    Neighbors,
}

// From linux/netlink.h; the number of a request is that of the addition plus two.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const GET: u16 = 2;

impl DumpRequest {
    /// Returns the request as a message.
    pub(crate) fn encode(self, sequence: u32) -> Vec<u8> {
        let (kind, body_len, family) = match self {
            Self::Links => (RTM_NEWLINK, 16, libc::AF_UNSPEC),
            Self::Addresses => (RTM_NEWADDR, 8, libc::AF_UNSPEC),
            Self::RoutesV4(_) => (RTM_NEWROUTE, RTMSG_LEN, libc::AF_INET),
            Self::RoutesV6(_) => (RTM_NEWROUTE, RTMSG_LEN, libc::AF_INET6),
            Self::NextHops => (RTM_NEWNEXTHOP, 8, libc::AF_UNSPEC),
            Self::Neighbors => (RTM_NEWNEIGH, 12, libc::AF_UNSPEC),
        };
        let mut bytes = vec![0; HEADER_LEN + body_len];
        bytes[4..6].copy_from_slice(&(kind + GET).to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes[HEADER_LEN] = family as u8;
        if let Self::RoutesV4(table) | Self::RoutesV6(table) = self {
            put_attribute(&mut bytes, RTA_TABLE, &table.to_ne_bytes());
        }
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    /// Returns whether the error `errno` means that there are no such objects: the table does not
    /// exist, or the kernel has no next-hop objects.
    pub(crate) fn is_absent(self, errno: i32) -> bool {
        match self {
            Self::RoutesV4(_) | Self::RoutesV6(_) => errno == libc::ENOENT,
            Self::NextHops => errno == libc::EOPNOTSUPP || errno == libc::EINVAL,
            Self::Links | Self::Addresses | Self::Neighbors => false,
        }
    }
}
