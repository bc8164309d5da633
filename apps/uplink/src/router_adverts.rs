//! Sender of router advertisements of a port, which follows the addresses of an engine's interface.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use towpath_engine::{LinkService, Remote, SharedLinkService};
use towpath_pool::{Port, PortCounters};
pub use towpath_radv::AdvertConfig;
use towpath_radv::{LinkAddresses, RouterAdvertiser, concerns};
use towpath_stack::IfaceId;
use towpath_stack::net::{Address, AddressState, Origin};
use towpath_tcp::Instant;

use crate::plan_error::PlanError;
use crate::random::random;

/// Interval at which changes of the interface's addresses are detected.
const LOOK: Duration = Duration::from_secs(1);

/// A sender of router advertisements that is not yet connected to a running engine.
pub struct PortAdvertiser {
    service: SharedLinkService<AdvertService>,
    closed: Receiver<()>,
}

impl PortAdvertiser {
    /// Creates a sender, which is silent until [`Self::follow`] finds a link-local address.
    ///
    /// # Errors
    /// Fails if the kernel returns no random bytes.
    pub fn new(config: AdvertConfig) -> Result<Self, PlanError> {
        let [a, b, c, d, e, f, g, h, ..] = random()?;
        let seed = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let (open, closed) = channel();
        let advertiser = RouterAdvertiser::new(config, seed);
        let service = SharedLinkService::new(AdvertService { advertiser, open: Some(open) });
        Ok(Self { service, closed })
    }

    /// Wraps the queues of a port, so that the sender works on the port.
    pub fn serve(&self, queues: Vec<Box<dyn Port + Send>>) -> Vec<Box<dyn Port + Send>> {
        queues.into_iter().map(|queue| Box::new(self.service.serve(queue)) as _).collect()
    }

    /// Starts a thread that passes the addresses of an engine's interface to the sender. The thread
    /// ends after the engine has closed the port.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn follow(self, remote: Remote, iface: IfaceId) -> io::Result<JoinHandle<()>> {
        let Self { service, closed } = self;
        let run = move || {
            loop {
                let service = service.clone();
                let updated = remote.on_first_shard(move |shard| {
                    let (now, addresses) = (shard.now(), shard.net().addresses(iface));
                    let on_link = on_link(&addresses);
                    service.reschedule(|it| it.advertiser.set_addresses(now, on_link));
                });
                let is_open = matches!(closed.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout));
                if updated.is_err() || !is_open {
                    return;
                }
            }
        };
        Builder::new().name("towpath-adverts".into()).spawn(run)
    }
}

/// Returns the addresses that an advertisement describes: those of the operator, and the link-local
/// address, as soon as no other host has them.
fn on_link(addresses: &[Address]) -> LinkAddresses {
    let is_own = |state| matches!(state, AddressState::Preferred | AddressState::Deprecated);
    let verified = addresses.iter().filter(|address| is_own(address.state));
    let mut on_link = LinkAddresses::default();
    for address in verified {
        match address.addr() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                on_link.link_local.get_or_insert(ip);
            }
            IpAddr::V6(_) if address.origin == Origin::Static => {
                on_link.addresses.push(address.prefix);
            }
            _ => {}
        }
    }
    on_link
}

/// The sender of router advertisements, which runs on the engine's thread.
struct AdvertService {
    advertiser: RouterAdvertiser,
    /// Dropped when the port is closed, which ends the thread of [`PortAdvertiser::follow`].
    open: Option<Sender<()>>,
}

impl LinkService for AdvertService {
    fn concerns(frame: &[u8]) -> bool {
        concerns(frame)
    }

    fn on_frame(&mut self, now: Instant, frame: &[u8], is_verified: bool) -> bool {
        self.advertiser.on_frame(now, frame, is_verified);
        // The stack also handles solicitations, because they contain the address of a neighbour.
        false
    }

    fn on_timeout(&mut self, now: Instant) {
        self.advertiser.on_timeout(now);
    }

    fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.advertiser.poll_frame()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.advertiser.next_timeout()
    }

    fn on_close(&mut self, _: Instant) {
        self.open = None;
        self.advertiser.stop();
    }

    fn counters(&self) -> PortCounters {
        vec![("ra", self.advertiser.counters().list().to_vec())]
    }
}
