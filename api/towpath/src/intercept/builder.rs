//! Builder of an interceptor.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::sync::mpsc::{Receiver, Sender};
use towpath_direct::{DirectConfig, Node, NodeConfig};
use towpath_pool::{LinkType, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{Budget, Instant};
use towpath_tap::{Kind, Options, Tap, add_routes, set_up_host};
use towpath_uplink::now_ns;
use towpath_wire::{MacAddr, Prefix};

use super::core::Core;
use super::counters::InterceptCounters;
use super::echo::{EchoPolicy, EchoSocket};
use super::error::InterceptError;
use super::handle::{InterceptHandle, SharedCore};
use super::limits::InterceptLimits;
use super::listener::TcpListener;
use super::runner::InterceptRunner;
use super::source::{
    DeviceSource, MpscLink, PacketLink, PacketSource, SourcePort, StagedSource, StreamSinkLink,
    TURN_PACKETS,
};
use super::udp::UdpSocket;

/// Minimum MTU in bytes, which IPv6 requires of every link (RFC 8200 §5).
const MTU_MIN: u32 = 1280;
/// Maximum MTU in bytes: an IP packet has at most 65,535 bytes.
const MTU_MAX: u32 = 65_535;

/// Handle of an interceptor. See the [module](super) for an example.
#[derive(Debug, Clone)]
pub struct Interceptor {
    handle: InterceptHandle,
}

impl Interceptor {
    /// Creates a builder. A source of packets must be set before [`InterceptBuilder::build`].
    pub fn builder() -> InterceptBuilder {
        InterceptBuilder {
            source: None,
            mtu: 1500,
            host: Vec::new(),
            routes: Vec::new(),
            own: Vec::new(),
            echo: EchoPolicy::Answer,
            limits: InterceptLimits::default(),
        }
    }

    /// Returns the counters, which remain available after the runner has ended.
    pub fn counters(&self) -> InterceptCounters {
        self.handle.with(|core| core.counters())
    }
}

/// Parts of a new interceptor: runner, sockets and handle.
#[derive(Debug)]
#[non_exhaustive]
pub struct Intercepted {
    /// Future that runs the stack. While it is not polled, no packets are handled.
    pub runner: InterceptRunner,
    /// Listener that returns the intercepted TCP connections.
    pub tcp: TcpListener,
    /// Socket that receives the intercepted UDP datagrams.
    pub udp: UdpSocket,
    /// Socket that receives echo requests, if [`EchoPolicy::Deliver`] is set.
    pub echo: Option<EchoSocket>,
    /// Handle by which the program reads the counters.
    pub interceptor: Interceptor,
}

/// Configures an interceptor.
#[must_use = "a builder does nothing until build() is called"]
pub struct InterceptBuilder {
    source: Option<PacketOrigin>,
    mtu: u32,
    host: Vec<(IpAddr, u8)>,
    routes: Vec<(IpAddr, u8)>,
    own: Vec<(IpAddr, u8)>,
    echo: EchoPolicy,
    limits: InterceptLimits,
}

/// The source of packets that the program has chosen.
enum PacketOrigin {
    Device(Kind, String),
    Descriptor(Kind, OwnedFd),
    Link(Box<dyn PacketLink>),
}

impl std::fmt::Debug for InterceptBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InterceptBuilder").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl InterceptBuilder {
    /// Takes packets from the TUN device `name`. Creates the device, or opens one that was created
    /// for this user, and brings it up with the MTU of the builder. Needs CAP_NET_ADMIN unless the
    /// device is prepared.
    ///
    /// A later call of this or another method that selects the source of packets replaces this one.
    pub fn tun(self, name: &str) -> Self {
        self.from(PacketOrigin::Device(Kind::Tun, name.to_owned()))
    }

    /// Intercepts packets from the TAP device `name`. Hosts on the device's link must use an
    /// address of [`Self::own`] as their router.
    pub fn tap(self, name: &str) -> Self {
        self.from(PacketOrigin::Device(Kind::Tap, name.to_owned()))
    }

    /// Takes packets from the descriptor of a TUN device that another program has created with
    /// IFF_NO_PI, as VPN clients of other systems do. Set [`Self::mtu`] to the MTU of the device,
    /// whose settings are not changed. With IFF_VNET_HDR, the kernel passes packets of up to 64
    /// KiB.
    pub fn descriptor(self, device: OwnedFd) -> Self {
        self.from(PacketOrigin::Descriptor(Kind::Tun, device))
    }

    /// Takes IP packets from `packets`, and sends IP packets to `to`, for tunnels of the program.
    /// Each packet has complete checksums, and at most [`Self::mtu`] bytes.
    ///
    /// If the channel `to` is full, the stack waits, and finally the program's writes block.
    /// Dropping the sender of `packets` ends the runner at once. Dropping the receiver of `to` ends
    /// it when the next packet is sent.
    pub fn channels(self, packets: Receiver<Bytes>, to: Sender<Bytes>) -> Self {
        self.from(PacketOrigin::Link(Box::new(MpscLink::new(packets, to))))
    }

    /// Takes IP packets from a stream, and sends IP packets to a sink, like [`Self::channels`]. The
    /// end of the stream ends the runner, and an error of the sink becomes its result.
    ///
    /// The sink is polled while the lock of the interceptor is held. The sink must not call sockets
    /// or counters of the interceptor, because they would wait for this lock forever.
    pub fn packets<R, S>(self, stream: R, sink: S) -> Self
    where
        R: Stream<Item = Bytes> + Send + Unpin + 'static,
        S: Sink<Bytes, Error: Into<io::Error>> + Send + Unpin + 'static,
    {
        self.from(PacketOrigin::Link(Box::new(StreamSinkLink::new(stream, sink))))
    }

    fn from(mut self, source: PacketOrigin) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the MTU of the link in bytes, from 1280 to 65,535. Default: 1500.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Assigns an address with the prefix length of its network to the device on this machine. Only
    /// valid for a device that was given by name.
    pub fn host_address(mut self, ip: IpAddr, prefix_len: u8) -> Self {
        self.host.push((ip, prefix_len));
        self
    }

    /// Adds a route of this machine for a network, which leads to the device. Only valid for a
    /// device that was given by name. The program's own connections must avoid this route: see
    /// `docs/library/intercept.md`.
    pub fn route(mut self, ip: IpAddr, prefix_len: u8) -> Self {
        self.routes.push((ip, prefix_len));
        self
    }

    /// Gives the stack an address on the link, with the prefix length of its network. Only for TAP
    /// devices, where the address answers ARP and NDP.
    pub fn own(mut self, ip: IpAddr, prefix_len: u8) -> Self {
        self.own.push((ip, prefix_len));
        self
    }

    /// Sets how echo requests ("ping") are handled.
    pub fn echo(mut self, policy: EchoPolicy) -> Self {
        self.echo = policy;
        self
    }

    /// Sets the limits on connections, memory and queues.
    pub fn limits(mut self, limits: InterceptLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Opens the source of packets, and creates the stack.
    ///
    /// # Errors
    /// See [`InterceptError`].
    pub fn build(mut self) -> Result<Intercepted, InterceptError> {
        let source = self.source.take().ok_or(InterceptError::NoSource)?;
        self.check(&source)?;
        let port = self.open(source)?;
        let own = self.own.iter().map(|&(ip, len)| prefix("own", ip, len));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let node = self.node(port, own)?;
        let shared = SharedCore::new(Core::new(node, self.limits, self.echo));
        let handle = InterceptHandle::new(shared.clone());
        Ok(Intercepted {
            runner: InterceptRunner::new(shared),
            tcp: TcpListener::new(handle.clone()),
            udp: UdpSocket::new(handle.clone()),
            echo: (self.echo == EchoPolicy::Deliver).then(|| EchoSocket::new(handle.clone())),
            interceptor: Interceptor { handle },
        })
    }

    fn check(&self, source: &PacketOrigin) -> Result<(), InterceptError> {
        let refuse = |message: String| Err(InterceptError::Option(message));
        let is_named = matches!(source, PacketOrigin::Device(..));
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return refuse(format!("mtu({}): expected {MTU_MIN} to {MTU_MAX} bytes", self.mtu));
        }
        if !is_named && !self.host.is_empty() {
            return refuse("host_address: only for tun(NAME) and tap(NAME)".into());
        }
        if !is_named && !self.routes.is_empty() {
            return refuse("route: only for tun(NAME) and tap(NAME)".into());
        }
        if !matches!(source, PacketOrigin::Device(Kind::Tap, _)) && !self.own.is_empty() {
            return refuse("own: only for tap(NAME)".into());
        }
        for (method, list) in [("host_address", &self.host), ("route", &self.routes)] {
            list.iter().try_for_each(|&(ip, len)| prefix(method, ip, len).map(drop))?;
        }
        Ok(())
    }

    fn open(&self, source: PacketOrigin) -> Result<SourcePort, InterceptError> {
        let tap = match source {
            PacketOrigin::Link(link) => {
                return Ok(SourcePort::Packets(Box::new(PacketSource::new(link))));
            }
            PacketOrigin::Descriptor(kind, fd) => Tap::from_descriptor(fd.into(), kind)?,
            PacketOrigin::Device(kind, name) => {
                let tap = Tap::open_kind(kind, &Options { name: Some(name) })?;
                set_up_host(tap.name(), self.mtu, &self.host)?;
                add_routes(tap.name(), &self.routes)?;
                tap
            }
        };
        Ok(SourcePort::Device(Box::new(DeviceSource::new(tap))))
    }

    fn node(
        &self,
        port: SourcePort,
        own: Vec<Prefix>,
    ) -> Result<Node<StagedSource>, InterceptError> {
        let limits = &self.limits;
        let seed = random()?;
        let now = Instant(now_ns());
        let mut config = NodeConfig {
            direct: DirectConfig { sockets_max: limits.connections, ..DirectConfig::default() },
            budget: Budget { rx_packets: TURN_PACKETS, tx_packets: TURN_PACKETS },
            ..NodeConfig::default()
        };
        config.stack.tcp.nodelay = true;
        config.stack.pending_max = limits.undecided.max(1);
        let mut node = Node::new(config, seed, now);
        let [a, b, c, d, e, ..] = random()?;
        let link = port.link_type();
        let interface = InterfaceConfig {
            name: "source".into(),
            link,
            // The first byte 02 marks the MAC address as locally administered and unicast.
            mac: MacAddr([0x02, a, b, c, d, e]),
            mtu: self.mtu,
            offloads: port.offloads(),
            addresses: own,
            slaac: false,
            any_address: true,
            kernel_cuts: false,
            in_process: false,
        };
        let iface = node.add_interface(interface, Box::new(StagedSource::new(port)));
        if link == LinkType::Ip {
            for all in ["0.0.0.0/0", "::/0"] {
                let all = all.parse().expect("a valid prefix");
                node.stack.net.add_route(all, None, iface, 0);
            }
        }
        Ok(node)
    }
}

fn prefix(method: &str, ip: IpAddr, len: u8) -> Result<Prefix, InterceptError> {
    let max = if ip.is_ipv4() { 32 } else { 128 };
    let message = || format!("{method}({ip}, {len}): expected a prefix length of 0 to {max}");
    Prefix::new(ip, len).ok_or_else(|| InterceptError::Option(message()))
}

fn random() -> Result<[u8; 32], InterceptError> {
    let mut bytes = [0; 32];
    // getrandom(2) always fills requests of up to 256 bytes once the kernel's generator is
    // initialized.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| InterceptError::System(errno.into()))?;
    Ok(bytes)
}
