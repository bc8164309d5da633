//! Configures and starts a stack.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::{EngineConfig, ResolverConfig};
use towpath_uplink::{
    Connected, DeviceSpec, Dns, MTUS, NetemSpec, Plan, PublishedRange, Recording, TcpDefaults,
    Tell, parse_cidr, random,
};

use crate::engine::Recipe;
use crate::error::StartError;
use crate::fork::Origin;
use crate::handler::HandlerSpec;
use crate::place::{Published, StackAddresses};
use crate::stack::Stack;

/// Default of [`Builder::linger`]. Five seconds suffice to retransmit a few lost packets. A peer
/// that does not read delays the end of a program by at most this time.
const LINGER: Duration = Duration::from_secs(5);
/// The gateway may use 1/GATEWAY_PART of the descriptors (RLIMIT_NOFILE), one for each flow. The
/// program keeps the remaining ones.
const GATEWAY_PART: u64 = 2;

/// Configuration of a stack: see [`Stack::builder`].
///
/// [`Self::start`] validates the values, so that calls can be chained.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder {
    links: Vec<LinkChoice>,
    publish: Vec<String>,
    addresses: Vec<String>,
    mtu: Option<u32>,
    pub(crate) shards: usize,
    pub(crate) seed: Option<[u8; 32]>,
    pub(crate) linger: Duration,
    capture: Option<PathBuf>,
    netem: Option<String>,
    tcp: Vec<String>,
    pub(crate) nameserver: Option<IpAddr>,
    /// Event handlers that the engine of the stack runs.
    pub(crate) handlers: Vec<HandlerSpec>,
}

/// The link of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkChoice {
    Loopback,
    Rootless,
    Tap(String),
    Device(String),
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            links: Vec::new(),
            publish: Vec::new(),
            addresses: Vec::new(),
            mtu: None,
            shards: 1,
            seed: None,
            linger: LINGER,
            capture: None,
            netem: None,
            tcp: Vec::new(),
            nameserver: None,
            handlers: Vec::new(),
        }
    }

    /// Creates a stack without a link: its sockets reach each other at 127.0.0.1 and ::1.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn loopback(mut self) -> Self {
        self.links.push(LinkChoice::Loopback);
        self
    }

    /// Connects the stack to the network by a gateway in this process, without privileges.
    ///
    /// The gateway uses an ordinary socket of this machine for each connection, so the stack
    /// reaches everything that this user reaches. Other hosts reach the stack at
    /// [published](Self::publish) ports. The stack's addresses are 10.0.2.15 and fd00:2::15 unless
    /// [`Self::address`] is called. Its gateway, 10.0.2.2 and fd00:2::2, leads to services on this
    /// machine's loopback.
    ///
    /// Each flow takes a descriptor of this process. The gateway uses at most half of the soft
    /// limit (RLIMIT_NOFILE) at the time when the stack starts.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().start()?;
    /// assert_eq!(stack.addresses()[0].to_string(), "10.0.2.15");
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn rootless(mut self) -> Self {
        self.links.push(LinkChoice::Rootless);
        self
    }

    /// Forwards a port of this machine to the stack: `[[HOSTADDR:]HOSTPORT:]PORT[/tcp|/udp]`, as
    /// `towpath run -p` does.
    ///
    /// HOSTADDR is 127.0.0.1 by default; IPv6 addresses need brackets. 0.0.0.0 makes the port
    /// reachable from other machines. Without HOSTPORT the kernel chooses a free port, which
    /// [`Stack::published`] returns. Both ports may be ranges of the same length. May be called
    /// several times. Requires [`Self::rootless`].
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().publish("80").publish("53/udp").start()?;
    /// let web = stack.published().iter().find(|published| published.port == 80);
    /// assert_ne!(web.unwrap().host.port(), 0);
    ///
    /// let wrong = towpath::Stack::builder().rootless().publish("80x:80").start();
    /// assert!(wrong.unwrap_err().to_string().contains("expected 1 to 65535"));
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn publish(mut self, ports: impl Into<String>) -> Self {
        self.publish.push(ports.into());
        self
    }

    /// Connects the stack to this machine by a TAP device, as a host on its own network.
    ///
    /// Creates the device `name`, or uses an existing one of this user; an empty name selects
    /// `towpath0` or the next free one. Creating a device requires CAP_NET_ADMIN: run as root, or
    /// create it once by `sudo ip tuntap add dev tw0 mode tap user $USER`.
    ///
    /// The stack uses the addresses of [`Self::address`]. The default is 10.77.0.2/24 and
    /// fd00:77::2/64, or those of the next network that this machine does not use. The stack's
    /// router is this machine, which gets the first address of the network that the stack does not
    /// have.
    ///
    /// ```no_run
    /// let stack = towpath::Stack::builder().tap("tw0").address("10.77.0.2/24").start();
    /// if let Err(error) = stack {
    ///     // A user without privileges is told what to do.
    ///     println!("{error}");
    /// }
    /// ```
    pub fn tap(mut self, name: impl Into<String>) -> Self {
        self.links.push(LinkChoice::Tap(name.into()));
        self
    }

    /// Connects the stack to a device, in the syntax of `towpath router`: `packet:eth1` for an
    /// interface that the kernel also uses, `xdp:eth1`, `tap:tw0` or `replay:a.pcap`.
    ///
    /// Call [`Self::address`] with an address in the device's network. Packet sockets require
    /// CAP_NET_RAW. The stack adopts later changes of an interface's MTU.
    ///
    /// ```
    /// let builder = towpath::Stack::builder().device("pakket:eth1");
    /// let error = builder.start().expect_err("there is no such device");
    /// assert!(error.to_string().contains("expected tap, packet, xdp"), "{error}");
    /// ```
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.links.push(LinkChoice::Device(device.into()));
        self
    }

    /// Adds an address of the stack with its prefix length, such as `10.77.0.2/24` or
    /// `fd00:77::2/64`.
    ///
    /// May be called several times, with [`Self::rootless`] or [`Self::tap`]. The gateway, or this
    /// machine for a TAP device, gets the first address of the network that the stack does not
    /// have.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().address("192.0.2.7/24").start()?;
    /// assert_eq!(stack.addresses(), ["192.0.2.7".parse::<std::net::IpAddr>().unwrap()]);
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn address(mut self, cidr: impl Into<String>) -> Self {
        self.addresses.push(cidr.into());
        self
    }

    /// Sets the MTU of the link in bytes: 1280 to 65535, for a TAP device at most 65521.
    ///
    /// The default is 16384 with [`Self::rootless`] and 1500 with [`Self::tap`].
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().mtu(1500).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Adds delay, loss and a maximum rate to the link, in the syntax of tc-netem(8), such as
    /// "delay 20ms loss 1%". Both directions are affected: a delay of 20 ms gives a round trip of
    /// 40 ms.
    ///
    /// With [`Self::pair`], the link between the two hosts is affected. With [`Self::rootless`] and
    /// [`Self::tap`], it is the link between the stack and the gateway or device. The MTU is then
    /// 1500 unless [`Self::mtu`] is called. A second call replaces the first one. The syntax is
    /// that of `towpath run --netem` without "in" and "out"; "seed NUMBER" determines which packets
    /// are lost.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// let (server, client) = towpath::Stack::builder().netem("delay 20ms").pair()?;
    /// let listener = server.listen("10.0.0.1:80")?;
    /// let begin = Instant::now();
    /// client.connect("10.0.0.1:80")?;
    /// assert!(begin.elapsed() >= Duration::from_millis(40));
    ///
    /// let error = towpath::Stack::builder().netem("delay fast").pair().unwrap_err();
    /// assert!(error.to_string().contains("expected a time, as 50ms"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn netem(mut self, link: impl Into<String>) -> Self {
        self.netem = Some(link.into());
        self
    }

    /// Sets defaults of TCP connections: `NAME=VALUE`, separated by commas, as in `towpath run
    /// --tcp`. Names of Linux's sysctls are valid as well, such as "tcp_ecn=1". Later calls add to
    /// earlier ones.
    ///
    /// ```
    /// let builder = towpath::Stack::builder().tcp("ecn=on,timestamps=off");
    /// let (server, client) = builder.pair()?;
    /// let listener = server.listen("10.0.0.1:80")?;
    /// assert!(!client.connect("10.0.0.1:80")?.info()?.timestamps);
    ///
    /// let error = towpath::Stack::builder().tcp("ecn=maybe").pair().unwrap_err();
    /// assert!(error.to_string().contains("expected off, on, accept"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn tcp(mut self, defaults: impl Into<String>) -> Self {
        self.tcp.push(defaults.into());
        self
    }

    /// Parses the values of [`Self::tcp`].
    pub(crate) fn tcp_defaults(&self) -> Result<TcpDefaults, StartError> {
        let mut tcp = TcpDefaults::default();
        for text in &self.tcp {
            tcp.set_all(text).map_err(|why| wrong("tcp", text, &why.to_string()))?;
        }
        Ok(tcp)
    }

    /// Sets the nameserver that `towpath::tokio::lookup_host` asks, at port 53.
    ///
    /// The default is the nameservers of /etc/resolv.conf. With [`Self::rootless`], the stack sends
    /// queries to the gateway, which forwards them to `address`, or to nameservers on this
    /// machine's loopback.
    ///
    /// ```
    /// let builder = towpath::Stack::builder().tap("tw0").nameserver([10, 77, 0, 1]);
    /// ```
    pub fn nameserver(mut self, address: impl Into<IpAddr>) -> Self {
        self.nameserver = Some(address.into());
        self
    }

    /// Returns the configured nameserver, for a stack that can send queries to it without the
    /// gateway.
    pub(crate) fn resolver(&self) -> Option<ResolverConfig> {
        self.nameserver.map(|address| ResolverConfig { address, only_loopback: false })
    }

    /// Sets the number of threads on which the stack runs: 1, 2, 4, 8 or 16. The default is 1.
    ///
    /// Each connection stays on one thread. More threads help if one is busy all the time and other
    /// processors are idle.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().shards(2).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = count;
        self
    }

    /// Sets the secret from which initial sequence numbers, ports and keys of hash tables are
    /// derived. Random by default.
    ///
    /// Use this for reproducible tests. A peer that knows the seed can forge segments, so keep the
    /// seed secret if the stack has a real network.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().seed([7; 32]).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn seed(mut self, seed: [u8; 32]) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the maximum time that the end of the stack waits until peers have received all data.
    /// The default is 5 seconds.
    ///
    /// Dropping the last handle of a stack outside of an async runtime, or [`Stack::shutdown`],
    /// waits until all data is
    /// acknowledged, or for this time. Then the remaining connections are reset. Zero: does not
    /// wait.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = towpath::Stack::builder().loopback();
    /// let stack = builder.linger(Duration::from_millis(200)).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn linger(mut self, most: Duration) -> Self {
        self.linger = most;
        self
    }

    /// Records the packets of the link in a pcapng file for Wireshark or tcpdump.
    ///
    /// Creates or truncates the file, which only this user can read. A packet that the stack
    /// dropped is recorded a second time, with the reason as its comment. The file is complete when
    /// the stack has ended. Packets that arrive faster than they can be written are missing.
    ///
    /// ```
    /// let path = std::env::temp_dir().join(format!("towpath-{}.pcapng", std::process::id()));
    /// let stack = towpath::Stack::builder().rootless().capture(&path).start()?;
    /// stack.shutdown()?;
    /// assert!(std::fs::metadata(&path)?.len() > 0);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn capture(mut self, path: impl Into<PathBuf>) -> Self {
        self.capture = Some(path.into());
        self
    }

    /// Starts the stack on its own thread, or on [several](Self::shards).
    ///
    /// # Errors
    /// Returns [`StartError`]. Nothing keeps running then.
    ///
    /// ```
    /// use towpath::{Stack, StartError};
    ///
    /// let error = Stack::builder().start().expect_err("the builder has no link");
    /// assert!(matches!(error, StartError::NoLink));
    /// assert!(error.to_string().contains("call rootless()"));
    /// ```
    pub fn start(self) -> Result<Stack, StartError> {
        let origin = Origin::here()?;
        let linger = self.linger;
        let (recipe, place) = self.recipe()?;
        Stack::begin(recipe, place, linger, origin)
    }

    /// Opens the link. Returns everything that is needed to create the engine, and the addresses of
    /// the stack.
    pub(crate) fn recipe(self) -> Result<(Recipe, StackAddresses), StartError> {
        let link = match &self.links[..] {
            [] => return Err(StartError::NoLink),
            [first, others @ ..] if others.iter().all(|other| other == first) => first.clone(),
            _ => return Err(StartError::TwoLinks),
        };
        if !self.shards.is_power_of_two() || self.shards > SHARDS_MAX {
            let wrong = format!("shards({}): expected 1, 2, 4, 8 or {SHARDS_MAX}", self.shards);
            return Err(StartError::Option(wrong));
        }
        let seed = random_unless(self.seed)?;
        match link {
            LinkChoice::Loopback => Ok((self.unlinked(seed)?, StackAddresses::default())),
            LinkChoice::Rootless => self.linked(None, seed),
            LinkChoice::Tap(name) => {
                let device = DeviceSpec::parse(&format!("tap:{name}"));
                self.linked(Some(device.map_err(|why| wrong("tap", &name, &why))?), seed)
            }
            LinkChoice::Device(text) => {
                let device = DeviceSpec::parse(&text);
                self.linked(Some(device.map_err(|why| wrong("device", &text, &why))?), seed)
            }
        }
    }

    /// Returns the configuration of an engine without a link.
    fn unlinked(self, seed: [u8; 32]) -> Result<Recipe, StartError> {
        self.refuse_for_loopback()?;
        let mut config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        config.set_tcp(&self.tcp_defaults()?);
        config.resolver = self.resolver();
        let ports = (0..self.shards).map(|_| Vec::new()).collect();
        let (recording, followed, services) = (None, None, self.services()?);
        Ok(Recipe { config, ports, seed, recording, services, followed })
    }

    /// Opens the link, and returns the configuration of an engine that uses it.
    fn linked(
        self,
        device: Option<DeviceSpec>,
        seed: [u8; 32],
    ) -> Result<(Recipe, StackAddresses), StartError> {
        let services = self.services()?;
        // Ignore remarks for the user, because a library cannot show them.
        let mut plan = Plan::new(device, Tell::ignore());
        for text in &self.publish {
            let ports = text.parse::<PublishedRange>();
            let ports = ports.map_err(|why| wrong("publish", text, &why))?;
            plan.publish.extend(ports.0);
        }
        for text in &self.addresses {
            plan.addresses.push(parse_cidr(text).map_err(|why| wrong("address", text, &why))?);
        }
        if let Some(netem) = self.netem_both(&seed)? {
            if self.shards > 1 {
                let wrong = "netem() does not go with shards(), because the link has one state: \
                             leave one of them out";
                return Err(StartError::Option(wrong.into()));
            }
            plan.set_netem(netem);
        }
        plan.mtu = self.mtu;
        plan.dns = self.nameserver.map(Dns::At);
        plan.tcp = self.tcp_defaults()?;
        plan.shards = self.shards;
        plan.descriptors = Some(descriptors_of_gateway());
        plan.check().map_err(StartError::from_plan)?;
        let path = self.capture.as_deref();
        let failed = |error: io::Error| StartError::Link {
            kind: error.kind(),
            message: format!("capture({}): {error}", path.unwrap_or(Path::new("")).display()),
        };
        let file = path.map(Recording::create).transpose().map_err(failed)?;
        // Block signals while the threads for the packet capture and the gateway start, because
        // threads inherit the signal mask. The program's signal handlers must not run on these
        // threads. SIGPIPE, raised by writing to a FIFO, must not end the program.
        let _signals = SignalsBlocked::new();
        let recording = file.map(Recording::start).transpose().map_err(failed)?;
        plan.capture = recording.as_ref().map(Recording::file);
        let Connected { config, ports, addresses, published, followed, .. } =
            plan.build(&seed).map_err(StartError::from_plan)?;
        let addresses = addresses.iter().map(|prefix| prefix.addr()).collect();
        let published =
            published.iter().map(|(publish, at)| Published::new(publish, *at)).collect();
        let recipe = Recipe { config, ports, seed, recording, services, followed };
        Ok((recipe, StackAddresses { addresses, published }))
    }

    /// Parses the options of [`Self::netem`]. The seed of the random losses comes from the stack's
    /// seed.
    pub(crate) fn netem_both(&self, seed: &[u8; 32]) -> Result<Option<NetemSpec>, StartError> {
        let Some(words) = &self.netem else { return Ok(None) };
        let [a, b, c, d, e, f, g, h, ..] = *seed;
        let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let (egress, ingress) = (Some(words.clone()), Some(words.clone()));
        let netem = NetemSpec { egress, ingress, seed };
        netem.links().map_err(|error| wrong("netem", words, &error.to_string()))?;
        Ok(Some(netem))
    }

    /// Returns an error if options of a link are set for a stack without a link.
    fn refuse_for_loopback(&self) -> Result<(), StartError> {
        Self::refuse(&[
            ("publish", !self.publish.is_empty()),
            ("address", !self.addresses.is_empty()),
            ("mtu", self.mtu.is_some()),
            ("capture", self.capture.is_some()),
            ("netem", self.netem.is_some()),
        ])
        .map_err(|call| {
            StartError::Option(format!(
                "{call}() is about a link, which a stack with loopback() does not have: call \
                 rootless() or tap(NAME) instead, or leave {call}() out"
            ))
        })
    }

    /// Returns an error if options contradict [`Self::pair`], whose two hosts have their own link
    /// and addresses.
    pub(crate) fn refuse_for_pair(&self) -> Result<(), StartError> {
        let link = self.links.first().map_or("", LinkChoice::call);
        Self::refuse(&[
            (link, !link.is_empty()),
            ("publish", !self.publish.is_empty()),
            ("address", !self.addresses.is_empty()),
            ("shards", self.shards != 1),
            ("capture", self.capture.is_some()),
        ])
        .map_err(|call| {
            StartError::Option(format!(
                "{call}() does not go with pair(), whose hosts have a link, addresses and one \
                 thread each: leave {call}() out"
            ))
        })
    }

    /// Returns an error with the first method of the list that was called on the builder.
    fn refuse(calls: &[(&'static str, bool)]) -> Result<(), &'static str> {
        match calls.iter().find(|(_, called)| *called) {
            Some((call, _)) => Err(call),
            None => Ok(()),
        }
    }

    /// Returns the configured MTU or else `default`, in bytes. Returns an error if it is out of
    /// range.
    pub(crate) fn mtu_or(&self, default: u32) -> Result<u32, StartError> {
        let mtu = self.mtu.unwrap_or(default);
        if MTUS.contains(&mtu) {
            return Ok(mtu);
        }
        let (least, most) = (MTUS.start(), MTUS.end());
        Err(StartError::Option(format!("mtu({mtu}): expected {least} to {most} bytes")))
    }
}

impl LinkChoice {
    /// Returns the name of the builder's method that selects this link.
    fn call(&self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Rootless => "rootless",
            Self::Tap(_) => "tap",
            Self::Device(_) => "device",
        }
    }
}

/// Returns `seed` if it is set, otherwise a random seed.
pub(crate) fn random_unless(seed: Option<[u8; 32]>) -> Result<[u8; 32], StartError> {
    match seed {
        Some(seed) => Ok(seed),
        None => random().map_err(StartError::from_plan),
    }
}

/// Maximum number of shards (engine threads) of an engine.
const SHARDS_MAX: usize = towpath_shm::layout::SHARDS_MAX as usize;

pub(crate) fn wrong(call: &str, value: &str, why: &str) -> StartError {
    StartError::Option(format!("{call}({value:?}): {why}"))
}

fn descriptors_of_gateway() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::from(u32::MAX));
    u32::try_from(soft / GATEWAY_PART).unwrap_or(u32::MAX)
}
