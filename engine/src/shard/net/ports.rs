//! Ports of a shard, and the events for which its poller waits.

use std::io;

use rustix::event::epoll::EventFlags;
use towpath_pool::Port;
use towpath_stack::{AttachedPort, IfaceId};

use crate::poller::Poller;
use crate::shard::net::sources::ShardSource;

/// Ports of a shard.
#[derive(Default)]
pub(crate) struct ShardPorts {
    /// All ports, in the order in which they were attached.
    pub list: Vec<AttachedPort<dyn Port + Send>>,
    /// Events for which each port is polled, in the order of `list`.
    watched: Vec<PortWatch>,
}

/// Events of a port for which the shard's poller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortWatch {
    /// Packets received.
    Packets,
    /// Received packets, and space in the transmit queue. The port could not accept all packets
    /// before.
    Room,
    /// No events, because the port has no descriptor. The port's timeout determines when it is
    /// polled.
    NoDescriptor,
    /// No events: the device was removed, and its descriptor would be ready forever.
    Gone,
}

impl ShardPorts {
    /// Adds the port of an interface, and makes the poller wait for its packets.
    pub fn attach(
        &mut self,
        poller: &mut Poller<ShardSource>,
        iface: IfaceId,
        port: Box<dyn Port + Send>,
    ) -> io::Result<()> {
        let fd = port.wake_fd();
        let watch = if fd.is_some() { PortWatch::Packets } else { PortWatch::NoDescriptor };
        if let Some(fd) = fd {
            poller.add(fd, source(iface))?;
        }
        self.list.push(AttachedPort { iface, port });
        self.watched.push(watch);
        Ok(())
    }

    /// Removes the port of an interface.
    pub fn detach(
        &mut self,
        poller: &mut Poller<ShardSource>,
        iface: IfaceId,
    ) -> Option<Box<dyn Port + Send>> {
        let place = self.list.iter().position(|known| known.iface == iface)?;
        let AttachedPort { port, .. } = self.list.remove(place);
        let is_polled = matches!(self.watched.remove(place), PortWatch::Packets | PortWatch::Room);
        if let Some(fd) = port.wake_fd().filter(|_| is_polled) {
            poller.remove(fd);
        }
        Some(port)
    }

    /// Returns all ports of the shard.
    pub fn iter(&self) -> impl Iterator<Item = &(dyn Port + Send)> {
        self.list.iter().map(|attached| &*attached.port)
    }

    /// Tells all ports whether their descriptors are among the ready sources in `woken`.
    pub fn looked(&mut self, woken: &[ShardSource]) {
        for AttachedPort { iface, port } in &mut self.list {
            port.looked(woken.contains(&source(*iface)));
        }
    }

    /// Makes the poller wait for transmit queue space of ports that could not accept all packets.
    /// Stops polling ports whose device was removed, and calls `on_gone` once for each of them.
    pub fn watch(
        &mut self,
        poller: &mut Poller<ShardSource>,
        mut on_gone: impl FnMut(IfaceId),
    ) -> io::Result<()> {
        for (AttachedPort { iface, port }, watch) in self.list.iter().zip(&mut self.watched) {
            let wanted = match () {
                () if *watch == PortWatch::Gone || port.is_gone() => PortWatch::Gone,
                () if *watch == PortWatch::NoDescriptor => PortWatch::NoDescriptor,
                () if port.blocked() => PortWatch::Room,
                () => PortWatch::Packets,
            };
            let before = std::mem::replace(watch, wanted);
            if wanted == before {
                continue;
            }
            let fd = port.wake_fd().filter(|_| before != PortWatch::NoDescriptor);
            let source = source(*iface);
            match (wanted, fd) {
                (PortWatch::Packets, Some(fd)) => poller.change(fd, source, EventFlags::IN)?,
                (PortWatch::Room, Some(fd)) => {
                    poller.change(fd, source, EventFlags::IN | EventFlags::OUT)?;
                }
                (PortWatch::Gone, Some(fd)) => poller.remove(fd),
                _ => {}
            }
            if wanted == PortWatch::Gone {
                on_gone(*iface);
            }
        }
        Ok(())
    }
}

fn source(iface: IfaceId) -> ShardSource {
    ShardSource::Port(iface.0.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use rustix::fd::BorrowedFd;
    use towpath_pool::{Batch, LinkType, Offloads, Pool};

    use super::*;

    /// Test port whose descriptor is always readable, like that of a removed device.
    struct Deleted {
        fd: OwnedFd,
        known: Arc<AtomicBool>,
    }

    impl Port for Deleted {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            0
        }
        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.fd.as_fd())
        }
        fn is_gone(&self) -> bool {
            self.known.load(Relaxed)
        }
    }

    #[test]
    fn reports_a_removed_device_once_and_is_not_woken_by_it() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(write);
        let known = Arc::new(AtomicBool::new(false));
        let (mut poller, mut ports) = (Poller::new().unwrap(), ShardPorts::default());
        let port = Box::new(Deleted { fd: read, known: known.clone() });
        let mut gone = Vec::new();
        ports.attach(&mut poller, IfaceId(1), port).unwrap();
        let mut look = |poller: &mut Poller<ShardSource>| {
            let mut woken = Vec::new();
            ports.watch(poller, |iface| gone.push(iface)).unwrap();
            poller.wait(Some(Duration::ZERO), &mut woken).unwrap();
            woken
        };
        assert_eq!(look(&mut poller), [ShardSource::Port(1)]);
        known.store(true, Relaxed);
        assert_eq!(look(&mut poller), []);
        assert_eq!(look(&mut poller), []);
        assert_eq!(gone, [IfaceId(1)]);
    }

    #[test]
    fn a_detached_port_wakes_nothing() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(write);
        let (mut poller, mut ports) = (Poller::new().unwrap(), ShardPorts::default());
        ports.attach(&mut poller, IfaceId(1), Box::new(Quiet)).unwrap();
        let port = Box::new(Deleted { fd: read, known: Arc::default() });
        ports.attach(&mut poller, IfaceId(2), port).unwrap();
        let look = |poller: &mut Poller<ShardSource>| {
            let mut woken = Vec::new();
            poller.wait(Some(Duration::ZERO), &mut woken).unwrap();
            woken
        };
        assert_eq!(look(&mut poller), [ShardSource::Port(2)]);
        let port = ports.detach(&mut poller, IfaceId(2)).expect("it was attached");
        assert!(ports.detach(&mut poller, IfaceId(2)).is_none());
        assert_eq!(look(&mut poller), []);
        ports.attach(&mut poller, IfaceId(3), port).unwrap();
        assert_eq!(look(&mut poller), [ShardSource::Port(3)]);
        assert_eq!(ports.iter().count(), 2);
    }

    /// Test port that has neither packets nor a descriptor.
    struct Quiet;

    impl Port for Quiet {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            0
        }
        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }
}
