//! Sockets that came into the process from elsewhere: over exec, posix_spawn, or SCM_RIGHTS.
//!
//! The kernel object behind a socket's descriptor is an eventfd whose count says which socket it is
//! ([`towpath_shm::layout::descriptor_identity`]); `/proc/self/fdinfo` shows the count.

use std::sync::atomic::Ordering::Acquire;

use towpath_client::descriptors::{self, Entry};
use towpath_client::{Region, Socket, in_flight};
use towpath_shm::layout::{SLOTS_MAX, descriptor_identity};

use crate::process;

/// Which slot a descriptor claims to stand for, and the count that proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    fd: i32,
    identity: u32,
}

/// The descriptors of a fresh process image that claim to be sockets of ours.
pub fn inherited() -> Vec<Claim> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter_map(claim).collect()
}

/// Makes the table say what this process's descriptors are.
pub(crate) fn reread(region: &Region) {
    let claims = inherited();
    for (fd, entry) in descriptors::ours(0) {
        let Entry::Socket(socket) = entry else { continue };
        let identity = descriptor_identity(socket.slot, socket.generation);
        if !claims.contains(&Claim { fd, identity }) {
            descriptors::take(fd);
        }
    }
    for claim in claims {
        if let Some(socket) = claim.resolve(region)
            && descriptors::lookup(claim.fd) == Entry::Kernel
        {
            descriptors::set_socket(claim.fd, socket);
        }
    }
}

/// A descriptor that arrived by SCM_RIGHTS: if it is a socket of ours, it becomes one here too.
pub fn received(fd: i32) {
    let Ok(client) = process::client() else {
        return;
    };
    if let Some(socket) = claim(fd).and_then(|claim| claim.resolve(client.region()))
        && client.adopt(socket).is_ok()
        && descriptors::fits(fd)
    {
        descriptors::set_socket(fd, socket);
        in_flight::landed(client, socket);
    }
}

/// A descriptor is about to be sent away by SCM_RIGHTS.
pub fn sent(fd: i32) {
    if let (Ok(client), Some(socket)) = (process::client(), descriptors::socket(fd)) {
        in_flight::sent(client, socket);
    }
}

/// After [`sent`]: the message was refused.
pub fn not_sent(fd: i32) {
    if let (Ok(client), Some(socket)) = (process::client(), descriptors::socket(fd)) {
        in_flight::landed(client, socket);
    }
}

impl Claim {
    /// The number.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The socket, if the slot still is what the claim says.
    pub fn resolve(&self, region: &Region) -> Option<Socket> {
        let slot = self.identity & (SLOTS_MAX - 1);
        let generation = region.slot(slot)?.generation.load(Acquire);
        // Odd: in use.
        let same = generation & 1 == 1 && descriptor_identity(slot, generation) == self.identity;
        same.then_some(Socket { slot, generation })
    }
}

fn claim(fd: i32) -> Option<Claim> {
    let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    if target.to_str()? != "anon_inode:[eventfd]" {
        return None;
    }
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    parse(&info).map(|identity| Claim { fd, identity })
}

fn parse(info: &str) -> Option<u32> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // Absent before Linux 6.10: then the range of the count has to do.
    if field("eventfd-semaphore:").is_some_and(|semaphore| semaphore != "1") {
        return None;
    }
    let count = u64::from_str_radix(field("eventfd-count:")?, 16).ok()?;
    let identity = u32::try_from(count).ok()?;
    (identity >> 31 == 1).then_some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsRawFd;

    #[test]
    fn an_eventfd_tells_who_it_is() {
        let identity = descriptor_identity(77, 5);
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK;
        let ours = eventfd(identity, flags).unwrap();
        let claimed = claim(ours.as_raw_fd()).unwrap();
        assert_eq!(claimed.identity, identity);
        assert!(inherited().contains(&claimed));
        let other = eventfd(3, EventfdFlags::NONBLOCK).unwrap();
        assert_eq!(claim(other.as_raw_fd()), None);
    }
}
