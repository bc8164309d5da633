//! DHCP client of a port: the service on its link, and the thread that applies its leases.

mod lease_changes;
mod lease_file;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use towpath_dhcp::{CLIENT_PORT, ClientConfig, ClientEvent, DhcpClient, frame};
pub use towpath_dhcp::{Lease, LeaseLoss};
use towpath_engine::{LinkService, Remote, SharedLinkService};
use towpath_pool::{Port, PortCounters};
use towpath_stack::IfaceId;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use crate::uplink::now_ns;
use lease_changes::LeaseApplier;

/// Settings of a DHCP client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DhcpSettings {
    /// File that keeps the lease for the next start. Without a file, the lease is released at the
    /// end.
    pub lease_file: Option<PathBuf>,
    /// Name that the client reports to the server.
    pub host_name: Option<String>,
}

/// News about a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DhcpNotice {
    /// The stack has the address and the routes of a new lease. Not reported for extensions.
    Bound(Lease),
    /// The stack has the address no more, or the offered address is in use.
    Lost(LeaseLoss),
    /// The stack refuses an address or a route of the lease.
    Refused(String),
    /// The lease could not be written to its file.
    NotKept(String),
}

/// A client before the engine runs.
pub struct LeaseClient {
    service: SharedLinkService<ClientService>,
    events: Receiver<ClientEvent>,
    settings: DhcpSettings,
}

impl LeaseClient {
    /// Creates a client for a port with this Ethernet address. Reads the file with the kept lease;
    /// an invalid one is ignored. `seed` must be random.
    pub fn new(settings: DhcpSettings, mac: [u8; 6], seed: u64) -> Self {
        let kept = settings.lease_file.as_deref().and_then(lease_file::read);
        let config =
            ClientConfig { mac: MacAddr(mac), host_name: settings.host_name.clone(), kept };
        let (sender, events) = channel();
        let client = DhcpClient::new(config, seed, Instant(now_ns()));
        let service = SharedLinkService::new(ClientService { client, events: Some(sender) });
        Self { service, events, settings }
    }

    /// Adds the client to the queues of its port.
    pub fn serve(&self, queues: Vec<Box<dyn Port + Send>>) -> Vec<Box<dyn Port + Send>> {
        queues.into_iter().map(|queue| Box::new(self.service.serve(queue)) as _).collect()
    }

    /// Applies leases to interface `iface` of an engine on a thread of its own. `tell` receives
    /// news.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn follow(
        self,
        remote: Remote,
        iface: IfaceId,
        tell: impl Fn(DhcpNotice) + Send + 'static,
    ) -> io::Result<RunningDhcp> {
        let Self { service, events, settings } = self;
        let releases = settings.lease_file.is_none();
        let follower =
            LeaseFollower { applier: LeaseApplier::new(remote.clone(), iface), settings, tell };
        let thread = Builder::new().name("towpath-dhcp".into());
        let thread = thread.spawn(move || follower.run(&events))?;
        Ok(RunningDhcp { service, remote, releases, thread })
    }
}

/// A client whose leases are applied.
pub struct RunningDhcp {
    service: SharedLinkService<ClientService>,
    remote: Remote,
    releases: bool,
    thread: JoinHandle<()>,
}

impl RunningDhcp {
    /// Releases the lease, unless a file keeps it, and ends the thread. Called before the engine
    /// ends.
    pub fn end(self) {
        self.service.with(|service| {
            if self.releases {
                service.client.release(Instant(now_ns()));
            }
            service.events = None;
        });
        // Otherwise the engine would send the message later, or not at all. Fails only if the
        // engine has ended.
        let _ = self.remote.wake();
        let _ = self.thread.join();
    }
}

/// The client on the thread of the engine.
struct ClientService {
    client: DhcpClient,
    /// Queue of events to the follower; `None` after [`RunningDhcp::end`].
    events: Option<Sender<ClientEvent>>,
}

impl ClientService {
    fn report(&mut self) {
        while let Some(event) = self.client.poll_event() {
            if let Some(events) = &self.events {
                // Fails only if no thread follows the client.
                let _ = events.send(event);
            }
        }
    }
}

impl LinkService for ClientService {
    fn concerns(bytes: &[u8]) -> bool {
        frame::concerns(bytes, CLIENT_PORT)
    }

    fn on_frame(&mut self, now: Instant, bytes: &[u8], is_verified: bool) -> bool {
        let is_taken = self.client.on_frame(now, bytes, is_verified);
        self.report();
        is_taken
    }

    fn on_timeout(&mut self, now: Instant) {
        self.client.on_timeout(now);
        self.report();
    }

    fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.client.poll_frame()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.client.next_timeout()
    }

    fn counters(&self) -> PortCounters {
        vec![("dhcp", self.client.counters().list().to_vec())]
    }
}

/// The thread that applies leases.
struct LeaseFollower<F> {
    applier: LeaseApplier,
    settings: DhcpSettings,
    tell: F,
}

impl<F: Fn(DhcpNotice)> LeaseFollower<F> {
    fn run(mut self, events: &Receiver<ClientEvent>) {
        while let Ok(event) = events.recv() {
            match event {
                ClientEvent::Bound(lease) => self.on_bound(lease),
                ClientEvent::Lost(loss) => {
                    self.applier.remove();
                    (self.tell)(DhcpNotice::Lost(loss));
                }
            }
        }
    }

    fn on_bound(&mut self, lease: Lease) {
        let is_new = self.applier.lease().is_none_or(|known| !is_same(known, &lease));
        if let Err(why) = self.applier.apply(&lease) {
            return (self.tell)(DhcpNotice::Refused(why));
        }
        if let Some(path) = &self.settings.lease_file
            && let Err(error) = lease_file::write(path, &lease)
        {
            (self.tell)(DhcpNotice::NotKept(format!("{}: {error}", path.display())));
        }
        if is_new {
            (self.tell)(DhcpNotice::Bound(lease));
        }
    }
}

/// Returns whether two leases differ in their times only.
fn is_same(a: &Lease, b: &Lease) -> bool {
    let Lease { valid_until, renew_at, rebind_at, .. } = *a;
    *a == Lease { valid_until, renew_at, rebind_at, ..b.clone() }
}
