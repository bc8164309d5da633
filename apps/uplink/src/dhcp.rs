//! DHCP client of a port: runs on the port's link, with a thread that applies its leases to the
//! engine.

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

use crate::plan_error::PlanError;
use crate::random::random;
use crate::uplink::now_ns;
use lease_changes::LeaseApplier;
pub use lease_changes::lease_metric;
pub(crate) use lease_file::{replace, unix_s};

/// Settings of a DHCP client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DhcpSettings {
    /// File in which the lease is kept for the next start. Without a file, the client releases the
    /// lease when it ends.
    pub lease_file: Option<PathBuf>,
    /// Host name that the client sends to the DHCP server.
    pub host_name: Option<String>,
}

/// Notification about a lease of a DHCP client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DhcpNotice {
    /// The stack now has the address and the routes of a new lease. Not sent when a lease is
    /// extended.
    Bound(Lease),
    /// The stack no longer has the address, or another host uses the offered address.
    Lost(LeaseLoss),
    /// The stack rejects an address or a route of the lease. Contains the reason.
    Refused(String),
    /// The lease could not be written to its file. Contains the reason.
    NotKept(String),
}

/// A DHCP client that is not yet connected to a running engine.
pub struct LeaseClient {
    service: SharedLinkService<ClientService>,
    events: Receiver<ClientEvent>,
    settings: DhcpSettings,
}

impl LeaseClient {
    /// Creates a client for a port with this Ethernet address. Reads the lease that was kept in the
    /// file; an invalid file is ignored.
    ///
    /// # Errors
    /// Fails if the kernel returns no random bytes.
    pub fn new(settings: DhcpSettings, mac: [u8; 6]) -> Result<Self, PlanError> {
        let kept = settings.lease_file.as_deref().and_then(lease_file::read);
        let config =
            ClientConfig { mac: MacAddr(mac), host_name: settings.host_name.clone(), kept };
        let (sender, events) = channel();
        let [a, b, c, d, e, f, g, h, ..] = random()?;
        let seed = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let client = DhcpClient::new(config, seed, Instant(now_ns()));
        let releases = settings.lease_file.is_none();
        let service = ClientService { client, events: Some(sender), releases };
        let service = SharedLinkService::new(service);
        Ok(Self { service, events, settings })
    }

    /// Wraps the queues of a port, so that the client sends and receives on the port.
    pub fn serve(&self, queues: Vec<Box<dyn Port + Send>>) -> Vec<Box<dyn Port + Send>> {
        queues.into_iter().map(|queue| Box::new(self.service.serve(queue)) as _).collect()
    }

    /// Starts a thread that applies leases to the interface `iface` of an engine, and calls `tell`
    /// with notifications. The thread ends after the engine has closed the port.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn follow(
        self,
        remote: Remote,
        iface: IfaceId,
        tell: impl Fn(DhcpNotice) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let Self { events, settings, .. } = self;
        let follower = LeaseFollower { applier: LeaseApplier::new(remote, iface), settings, tell };
        let thread = Builder::new().name("towpath-dhcp".into());
        thread.spawn(move || follower.run(&events))
    }
}

/// The DHCP client, which runs on the engine's thread.
struct ClientService {
    client: DhcpClient,
    /// Sends events to the thread that applies leases; `None` after the port was closed.
    events: Option<Sender<ClientEvent>>,
    /// Whether the DHCP client releases its lease when the client ends.
    releases: bool,
}

impl ClientService {
    fn report(&mut self) {
        while let Some(event) = self.client.poll_event() {
            if let Some(events) = &self.events {
                // Ignore errors: this fails only if no thread applies the leases.
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

    fn on_close(&mut self, now: Instant) {
        self.events = None;
        if self.releases {
            self.client.release(now);
        }
    }

    fn counters(&self) -> PortCounters {
        vec![("dhcp", self.client.counters().list().to_vec())]
    }
}

/// State of the thread that applies leases.
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

/// Returns whether two leases are equal except for their times.
fn is_same(a: &Lease, b: &Lease) -> bool {
    let Lease { valid_until, renew_at, rebind_at, .. } = *a;
    *a == Lease { valid_until, renew_at, rebind_at, ..b.clone() }
}
