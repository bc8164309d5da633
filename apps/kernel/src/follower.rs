//! The thread that applies the kernel's changes to an engine.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use towpath_engine::{Change, Fault, Gone, Remote};
use towpath_netlink::{DumpError, DumpRequest, KernelSocket, NetNamespace};
use towpath_wire::Prefix;

use crate::hosts::AdoptedHosts;
use crate::model::{KernelDump, KernelModel, LinkBinding};

/// Networks per update of the engine, so that an update delays packets by a few ms at most.
const NETWORKS_MAX: usize = 1024;
/// Dumps are repeated after this multiple of their duration at the earliest, so that they take a
/// tenth of a processor at most.
const DUMP_INTERVAL: u32 = 9;
/// Minimum time between two dumps.
const DUMP_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// Time after which a failed dump is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Number of dumps in a row that may be interrupted by changes before the user is told.
const INTERRUPTIONS_MAX: usize = 20;

/// The kernel's objects to follow.
#[derive(Debug, Clone)]
pub struct KernelSource {
    /// Network namespace of the objects.
    pub namespace: NetNamespace,
    /// Routing table.
    pub table: u32,
    /// Interfaces that the engine has as well.
    pub bindings: Vec<LinkBinding>,
}

/// Report of a follower.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncNotice {
    /// The engine has the routes of a dump.
    Synchronized {
        /// Number of networks with routes of the kernel.
        networks: usize,
        /// Number of routes that the engine has refused since the start.
        refused: usize,
    },
    /// All addresses that the engine has from the kernel; they have changed.
    Addresses(Vec<IpAddr>),
    /// The engine refused an address of the kernel. Reported once, until the kernel changes it.
    AddressRefused {
        /// Address in the kernel.
        address: Prefix,
        /// Reason of the engine.
        why: Fault,
    },
    /// The kernel's objects cannot be read now; the follower tries again.
    Failed(String),
}

/// Thread that follows a kernel. Dropping this ends the thread; the engine keeps its routes.
#[derive(Debug)]
pub struct KernelFollower {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl KernelFollower {
    /// Starts the thread, which ends with the engine. `tell` is called on the thread.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered, or if no socket or thread can be created.
    pub fn start(
        source: KernelSource,
        remote: Remote,
        tell: impl FnMut(SyncNotice) + Send + 'static,
    ) -> io::Result<Self> {
        let open = || Ok((KernelSocket::subscribe()?, KernelSocket::open()?));
        let opened: io::Result<_> = source.namespace.run(open)?;
        let (changes, dumps) = opened?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let follower = FollowerThread {
            changes,
            dumps,
            table: source.table,
            adopts_addresses: source.namespace != NetNamespace::Own,
            model: KernelModel::new(source.table, source.bindings),
            hosts: AdoptedHosts::default(),
            remote,
            tell,
            due: Instant::now(),
            interruptions: 0,
            refused: 0,
        };
        let thread = Builder::new().name("towpath-kernel".into());
        let thread = thread.spawn(move || follower.run(&stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for KernelFollower {
    fn drop(&mut self) {
        // Cannot fail, because one write never overflows the eventfd's counter.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it has printed the panic already.
            let _ = thread.join();
        }
    }
}

struct FollowerThread<F> {
    changes: KernelSocket,
    dumps: KernelSocket,
    table: u32,
    model: KernelModel,
    /// Whether the engine takes over addresses. The kernel of the engine's own namespace answers
    /// for its addresses itself.
    adopts_addresses: bool,
    hosts: AdoptedHosts,
    remote: Remote,
    tell: F,
    /// Earliest time of the next dump.
    due: Instant,
    /// Number of dumps in a row that were interrupted by changes.
    interruptions: usize,
    /// Routes that the engine has refused.
    refused: usize,
}

/// FollowerEvent that ends a wait.
enum FollowerEvent {
    Stop,
    Changes,
    Timeout,
}

impl<F: FnMut(SyncNotice)> FollowerThread<F> {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let is_dumped = self.model.is_stale() && Instant::now() >= self.due && self.dump();
            if self.pass().is_err() {
                return;
            }
            if is_dumped {
                let (networks, refused) = (self.model.networks(), self.refused);
                (self.tell)(SyncNotice::Synchronized { networks, refused });
            }
            match self.wait(stop) {
                FollowerEvent::Stop => return,
                FollowerEvent::Changes => self.read(),
                FollowerEvent::Timeout => {}
            }
        }
    }

    /// Waits for changes, for `stop`, or for the next dump.
    fn wait(&self, stop: &OwnedFd) -> FollowerEvent {
        let left = || self.due.saturating_duration_since(Instant::now());
        let timeout = self.model.is_stale().then(left);
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let fds = [stop.as_fd(), self.changes.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // An error, such as EINTR, is treated as a timeout.
        let polled = poll(&mut fds, timeout.as_ref());
        let [stopped, changed] = fds.map(|fd| polled.is_ok() && !fd.revents().is_empty());
        match (stopped, changed) {
            (true, _) => FollowerEvent::Stop,
            (_, true) => FollowerEvent::Changes,
            _ => FollowerEvent::Timeout,
        }
    }

    fn read(&mut self) {
        let model = &mut self.model;
        if self.changes.read(|change| model.on_change(change)).is_err() {
            // ENOBUFS: changes were lost.
            model.set_stale();
        }
    }

    /// Replaces the state by a dump. Returns whether that succeeded.
    fn dump(&mut self) -> bool {
        let started = Instant::now();
        let dumped = self.dump_once();
        let took = started.elapsed();
        let interval = (took * DUMP_INTERVAL).max(DUMP_INTERVAL_MIN);
        let interruptions = std::mem::take(&mut self.interruptions);
        let (dump, interval) = match dumped {
            Ok(dump) => (Some(dump), interval),
            // Until the next dump, changes are read and passed on.
            Err(DumpError::Interrupted) if interruptions < INTERRUPTIONS_MAX => {
                self.interruptions = interruptions + 1;
                (None, interval)
            }
            Err(error) => {
                (self.tell)(SyncNotice::Failed(error.to_string()));
                (None, RETRY)
            }
        };
        self.due = Instant::now() + interval;
        let is_dumped = dump.is_some();
        dump.into_iter().for_each(|dump| self.model.replace(dump));
        is_dumped
    }

    /// Dumps all objects.
    fn dump_once(&mut self) -> Result<KernelDump, DumpError> {
        let mut dump = KernelDump::default();
        let requests = [
            DumpRequest::Links,
            DumpRequest::Addresses,
            DumpRequest::Neighbors,
            DumpRequest::NextHops,
            DumpRequest::RoutesV4(self.table),
            DumpRequest::RoutesV6(self.table),
        ];
        for request in requests {
            self.dumps.dump(request, |message| dump.add(self.table, message))?;
        }
        Ok(dump)
    }

    /// Passes all differences to the engine.
    fn pass(&mut self) -> Result<(), Gone> {
        let mut wanted = self.model.hosts();
        if !self.adopts_addresses {
            wanted.addresses.clear();
        }
        let changes = self.hosts.changes(&wanted);
        let addresses_change = changes.iter().any(is_of_address);
        for change in changes {
            match self.remote.apply(vec![change])? {
                Ok(_) => self.hosts.on_applied(&change),
                Err(refused) => self.on_refused(&change, refused.why),
            }
        }
        self.hosts.on_passed(&wanted);
        if addresses_change {
            (self.tell)(SyncNotice::Addresses(self.hosts.addresses().collect()));
        }
        self.pass_routes()
    }

    fn on_refused(&mut self, change: &Change, why: Fault) {
        if let Some(address) = missing_address(change, why) {
            (self.tell)(SyncNotice::AddressRefused { address, why });
        }
    }

    /// Passes changed routes to the engine.
    fn pass_routes(&mut self) -> Result<(), Gone> {
        loop {
            let updates = self.model.take_updates(NETWORKS_MAX);
            if updates.is_empty() {
                return Ok(());
            }
            self.refused += self.remote.set_kernel_routes(updates)?;
        }
    }
}

/// Returns the address that the engine lacks because it refused a change.
fn missing_address(change: &Change, why: Fault) -> Option<Prefix> {
    match *change {
        // The operator has given the engine the same address.
        Change::AddAddress { .. } if why == Fault::Exists => None,
        Change::AddAddress { prefix, .. } => Some(prefix),
        _ => None,
    }
}

fn is_of_address(change: &Change) -> bool {
    matches!(change, Change::AddAddress { .. } | Change::RemoveAddress { .. })
}

#[cfg(test)]
mod tests {
    use towpath_stack::IfaceId;

    use super::*;

    #[test]
    fn only_an_address_that_the_engine_lacks_is_reported() {
        let prefix = "10.1.0.1/24".parse().expect("a prefix");
        let added = Change::AddAddress { iface: IfaceId(1), prefix };
        assert_eq!(missing_address(&added, Fault::Full), Some(prefix));
        assert_eq!(missing_address(&added, Fault::Exists), None);
        let removed = Change::RemoveAddress { iface: IfaceId(1), addr: prefix.addr(), len: None };
        assert_eq!(missing_address(&removed, Fault::NoAddress), None);
    }
}
