//! How a stack is connected, and how it is started.

use std::path::PathBuf;
use std::time::Duration;

use towpath_engine::EngineConfig;
use towpath_uplink::{
    Connected, DeviceSpec, MTUS, NetemSpec, Plan, PublishedRange, Recording, Tell, parse_cidr,
    random,
};

use crate::engine::Recipe;
use crate::error::StartError;
use crate::fork::Origin;
use crate::place::{Published, StackAddresses};
use crate::stack::Stack;

/// Default of [`Builder::linger`]. Peers on a link that works have everything in much less, also
/// after a loss or two. A peer that reads nothing holds up the end of a program for no longer.
const LINGER: Duration = Duration::from_secs(5);
/// Divisor: the gateway counts on 1/GATEWAY_PART of the descriptors of the process
/// (RLIMIT_NOFILE). Each of its flows takes one; the rest is the program's.
const GATEWAY_PART: u64 = 2;

/// A stack to be: see [`Stack::builder`].
///
/// Wrong values are told by [`Self::start`], so that calls can be chained.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder {
    links: Vec<LinkChoice>,
    publish: Vec<String>,
    addresses: Vec<String>,
    mtu: Option<u32>,
    shards: usize,
    pub(crate) seed: Option<[u8; 32]>,
    pub(crate) linger: Duration,
    capture: Option<PathBuf>,
    netem: Option<String>,
}

/// A link that a stack can have.
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
        }
    }

    /// Connects the stack to nothing: its sockets reach each other by 127.0.0.1 and ::1.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn loopback(mut self) -> Self {
        self.links.push(LinkChoice::Loopback);
        self
    }

    /// Connects the stack to the network by a gateway in this process, which needs no privileges.
    ///
    /// The gateway turns each connection into an ordinary socket of this machine. The stack
    /// reaches everything that this user reaches. Other hosts reach the stack at ports that are
    /// [published](Self::publish). The stack is 10.0.2.15 and fd00:2::15 unless [`Self::address`]
    /// says otherwise; its gateway, 10.0.2.2 and fd00:2::2, leads to services on this machine's
    /// loopback.
    ///
    /// A flow takes a descriptor of this process; the gateway counts on half of the soft limit
    /// (RLIMIT_NOFILE) as it is when the stack starts.
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
    /// `towpath run -p` has it.
    ///
    /// HOSTADDR is 127.0.0.1 unless given; an IPv6 address stands in brackets. 0.0.0.0 offers the
    /// port to other machines. Without HOSTPORT the kernel chooses a free port, which
    /// [`Stack::published`] tells. Ranges of one length may stand for both ports. May be called
    /// several times, with [`Self::rootless`] only.
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

    /// Connects the stack to this machine by a TAP device, so that it is a host on a network of
    /// its own.
    ///
    /// Makes the device `name`, or takes over one that was made for this user; an empty name
    /// stands for `towpath0` or the next free one. To make a device takes CAP_NET_ADMIN: run as
    /// root, or have it made once by `sudo ip tuntap add dev tw0 mode tap user $USER`.
    ///
    /// The stack has the addresses that [`Self::address`] gives, otherwise 10.77.0.2/24 and
    /// fd00:77::2/64, or those of the next network that this machine is not in. The machine gets
    /// the first other address of the network, and is the stack's router.
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

    /// Connects the stack to a device in the words of `towpath router`: `packet:eth1` for an
    /// interface of this machine beside the kernel, `xdp:eth1`, `tap:tw0` or `replay:a.pcap`.
    ///
    /// Give an [`Self::address`] in the network of the device. Packet sockets need CAP_NET_RAW.
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

    /// An address of the stack with the length of its network, as `10.77.0.2/24` or
    /// `fd00:77::2/64`.
    ///
    /// May be called several times, with [`Self::rootless`] or [`Self::tap`]. The first other
    /// address of the network is the gateway's, or this machine's.
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

    /// Longest IP packet of the link, in bytes: 1280 to 65535, with a TAP device at most 65521.
    ///
    /// 16384 with [`Self::rootless`] and 1500 with [`Self::tap`] unless this is called.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().mtu(1500).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Gives the link delay, loss and a rate, in the words of tc-netem(8), as "delay 20ms loss 1%".
    /// Both directions have them: a delay of 20 ms is a round trip of 40 ms.
    ///
    /// With [`Self::pair`] the link joins the two hosts. With [`Self::rootless`] and [`Self::tap`]
    /// it lies between the stack and the gateway or device. The MTU is 1500 then, unless
    /// [`Self::mtu`] is called. The last call counts. The words are those of `towpath run --netem`
    /// without "in" and "out"; "seed NUMBER" among them decides which packets are lost.
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

    /// Divides the stack among so many threads: 1, 2, 4, 8 or 16. The stack has one unless this
    /// is called.
    ///
    /// Each connection stays on one thread. More of them help where one thread keeps a processor
    /// busy and others are free.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().shards(2).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = count;
        self
    }

    /// The secret of the stack, from which initial sequence numbers, ports and keys of hash
    /// tables come. Random unless this is called.
    ///
    /// For tests that want the same choices each time. A peer that knows the seed can forge
    /// segments, so that a stack with peers keeps it secret.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().seed([7; 32]).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn seed(mut self, seed: [u8; 32]) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Bound on the time for which the end of the stack waits until peers have what was written;
    /// 5 seconds unless this is called.
    ///
    /// Dropping the last handle of a stack, or [`Stack::shutdown`], waits as long as peers take,
    /// and no longer than this. Connections that are not through by then are reset. Zero: nothing
    /// is waited for.
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

    /// Records the packets of the link in a pcapng file, which Wireshark and tcpdump read.
    ///
    /// The file is made, or emptied, and only this user can read it. A packet that the stack
    /// dropped follows once more, with the reason as its comment. The file is complete when the
    /// stack has ended; where packets come faster than they can be written, some are missing.
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

    /// Starts the stack on a thread of its own, or on [several](Self::shards).
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left behind.
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
        let linger = self.linger;
        let (recipe, place) = match link {
            LinkChoice::Loopback => (self.unlinked(seed)?, StackAddresses::default()),
            LinkChoice::Rootless => self.linked(None, seed)?,
            LinkChoice::Tap(name) => {
                let device = DeviceSpec::parse(&format!("tap:{name}"));
                self.linked(Some(device.map_err(|why| wrong("tap", &name, &why))?), seed)?
            }
            LinkChoice::Device(text) => {
                let device = DeviceSpec::parse(&text);
                self.linked(Some(device.map_err(|why| wrong("device", &text, &why))?), seed)?
            }
        };
        Stack::begin(recipe, place, linger, origin)
    }

    /// An engine without a link.
    fn unlinked(self, seed: [u8; 32]) -> Result<Recipe, StartError> {
        self.refuse_for_loopback()?;
        let config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        let ports = (0..self.shards).map(|_| Vec::new()).collect();
        Ok(Recipe { config, ports, seed, recording: None })
    }

    /// An engine whose link is open.
    fn linked(
        self,
        device: Option<DeviceSpec>,
        seed: [u8; 32],
    ) -> Result<(Recipe, StackAddresses), StartError> {
        // The library has no user to show remarks to.
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
        plan.shards = self.shards;
        plan.descriptors = Some(descriptors_of_gateway());
        plan.check().map_err(StartError::from_plan)?;
        let mut recording = None;
        if let Some(path) = &self.capture {
            let file = Recording::start(path).map_err(|error| StartError::Link {
                kind: error.kind(),
                message: format!("capture({}): {error}", path.display()),
            })?;
            plan.capture = Some(file.file());
            recording = Some(file);
        }
        let Connected { config, ports, addresses, published, .. } =
            plan.build(&seed).map_err(StartError::from_plan)?;
        let addresses = addresses.iter().map(|prefix| prefix.addr()).collect();
        let published =
            published.iter().map(|(publish, at)| Published::new(publish, *at)).collect();
        Ok((Recipe { config, ports, seed, recording }, StackAddresses { addresses, published }))
    }

    /// The links that [`Self::netem`] has described. The seed of the stack is that of the dice.
    pub(crate) fn netem_both(&self, seed: &[u8; 32]) -> Result<Option<NetemSpec>, StartError> {
        let Some(words) = &self.netem else { return Ok(None) };
        let [a, b, c, d, e, f, g, h, ..] = *seed;
        let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let (egress, ingress) = (Some(words.clone()), Some(words.clone()));
        let netem = NetemSpec { egress, ingress, seed };
        netem.links().map_err(|error| wrong("netem", words, &error.to_string()))?;
        Ok(Some(netem))
    }

    /// A stack without peers has no use for values of a link.
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

    /// The hosts of a pair have a link and addresses already.
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

    /// The first of these calls that was made.
    fn refuse(calls: &[(&'static str, bool)]) -> Result<(), &'static str> {
        match calls.iter().find(|(_, called)| *called) {
            Some((call, _)) => Err(call),
            None => Ok(()),
        }
    }

    /// The MTU in bytes, if it is one that an IP link can have.
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
    /// The call of the builder that asks for it.
    fn call(&self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Rootless => "rootless",
            Self::Tap(_) => "tap",
            Self::Device(_) => "device",
        }
    }
}

/// The seed that was given, or a random one.
pub(crate) fn random_unless(seed: Option<[u8; 32]>) -> Result<[u8; 32], StartError> {
    match seed {
        Some(seed) => Ok(seed),
        None => random().map_err(StartError::from_plan),
    }
}

/// Shards that an engine can have.
const SHARDS_MAX: usize = towpath_shm::layout::SHARDS_MAX as usize;

fn wrong(call: &str, value: &str, why: &str) -> StartError {
    StartError::Option(format!("{call}({value:?}): {why}"))
}

fn descriptors_of_gateway() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::from(u32::MAX));
    u32::try_from(soft / GATEWAY_PART).unwrap_or(u32::MAX)
}
