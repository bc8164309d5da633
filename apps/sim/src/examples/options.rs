//! Options of the examples, and their conversion to scenarios.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::example::Example;
use super::load::{Load, NO_QDISC, Pings, sample_of};
use crate::units::{Rate, Time, bits_per_second};

/// Whether byte queue limits (BQL) are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bql {
    /// A run without BQL.
    Off,
    /// A run with BQL.
    On,
    /// Both runs, for comparison.
    Both,
}

/// Transport of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadTransport {
    /// A TCP connection.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// Device of an example, with its queueing discipline and link.
#[derive(Debug, Clone)]
pub struct CardOptions {
    /// Rate on the wire.
    pub rate: Rate,
    /// Number of descriptors of the ring.
    pub ring: usize,
    /// Number of sent packets that triggers a completion interrupt. Default: at most 32, and at
    /// most half of the ring.
    pub tx_frames: Option<usize>,
    /// Maximum delay of that interrupt.
    pub tx_delay: Time,
    /// Queueing discipline in tc's syntax, or "none".
    pub qdisc: String,
    /// Byte queue limits.
    pub bql: Bql,
    /// Time between two lines of statistics.
    pub every: Time,
    /// One-way propagation delay of the link.
    pub delay: Time,
    /// Real device at the end of the link; None: the other host is simulated, too.
    pub real: Option<RealCard>,
}

/// Real device of an example, behind which the destination is.
#[derive(Debug, Clone)]
pub struct RealCard {
    /// Device in the notation of scenarios, as `packet:eth1`.
    pub device: String,
    /// Address of the simulated sender, with the prefix length of its network.
    pub address: String,
    /// Router to the destination; None: it is in the sender's network.
    pub gateway: Option<Ipv4Addr>,
    /// Port of the destination that gets the load.
    pub port: u16,
    /// Rate of a simulated link in front of the device; None: the device is the bottleneck.
    pub rate: Option<Rate>,
}

impl RealCard {
    fn prefix_len(&self) -> &str {
        self.address.rsplit_once('/').map_or("8", |(_, len)| len)
    }

    /// Formats the keys of a host that sends.
    fn host_keys(&self) -> String {
        let gateway = |ip| format!("gateway = \"{ip}\"\n");
        format!("address = \"{}\"\n{}", self.address, self.gateway.map_or(String::new(), gateway))
    }
}

/// Overhead of an Ethernet frame on the wire in bytes: preamble, checksum and gap.
pub(super) const ETHERNET_OVERHEAD: u64 = 24;
/// Default number of sent packets per completion interrupt.
const TX_FRAMES: usize = 32;

impl CardOptions {
    /// Returns whether a real device is the bottleneck.
    pub(super) fn is_unlimited(&self) -> bool {
        self.real.as_ref().is_some_and(|real| real.rate.is_none())
    }

    pub(super) fn frames(&self) -> usize {
        let usual = TX_FRAMES.min(self.ring / 2).max(1);
        let usual = if self.tx_delay.0 == 0 { 1 } else { usual };
        self.tx_frames.unwrap_or(usual)
    }

    pub(super) fn tx_delay_ns(&self) -> u64 {
        if self.frames() == 1 { 0 } else { self.tx_delay.0 }
    }

    /// Refuses options of a simulated device if there is none.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.is_unlimited() && self.tx_frames.is_some() {
            return Err(
                "`tx-frames` is a property of a simulated device; leave it out, or give a \
                        `rate` for one in front of the real device"
                    .into(),
            );
        }
        Ok(())
    }

    /// Formats the address of the host that sends.
    fn source(&self, simulated: Ipv4Addr) -> String {
        match &self.real {
            None => simulated.to_string(),
            Some(real) => real.address.split('/').next().unwrap_or_default().to_owned(),
        }
    }

    /// Formats the keys of the host that sends.
    fn sender(&self, address: Ipv4Addr) -> String {
        let simulated = || format!("address = \"{address}\"\n");
        self.real.as_ref().map_or_else(simulated, RealCard::host_keys)
    }

    /// Formats the keys of the host that receives.
    fn receiver(&self, address: Ipv4Addr) -> String {
        match &self.real {
            None => format!("address = \"{address}\"\n"),
            Some(real) => format!(
                "address = \"{address}/{}\"\ndevice = {}\n",
                real.prefix_len(),
                toml::Value::from(&*real.device)
            ),
        }
    }

    /// Formats the key of a flow for its port.
    pub(super) fn port(&self) -> String {
        self.real.as_ref().map_or(String::new(), |real| format!("port = {}\n", real.port))
    }

    /// Formats the keys of the link with the device.
    fn keys(&self) -> String {
        let qdisc = match &*self.qdisc {
            NO_QDISC => String::new(),
            words => format!("qdisc = \"{words}\"\n"),
        };
        if self.is_unlimited() {
            return format!("{qdisc}device = {{ ring = {} }}\n", self.ring);
        }
        format!(
            "rate = \"{}\"\ndelay = \"{}\"\n{qdisc}device = {{ ring = {}, frames = {}, \
             delay = \"{}\", overhead = {ETHERNET_OVERHEAD} }}\n",
            self.rate.exact(),
            self.delay.exact(),
            self.ring,
            self.frames(),
            Time(self.tx_delay_ns()).exact()
        )
    }

    pub(super) fn variants(&self, link: &str) -> String {
        let mut out = String::new();
        for is_on in self.bql.runs() {
            // Writing to a String cannot fail.
            let _ = write!(
                out,
                "\n[[variant]]\nname = \"{}\"\nset = {{ \"link.{link}.device.bql\" = {is_on} }}\n",
                variant(*is_on)
            );
        }
        out
    }

    pub(super) fn words(&self) -> String {
        let above = if self.qdisc == NO_QDISC { "the queue of the stack" } else { &self.qdisc };
        if let Some(real) = self.real.as_ref().filter(|real| real.rate.is_none()) {
            return format!(
                "The device {} may hold {} frames; above it is {above}.",
                real.device, self.ring
            );
        }
        let behind = self
            .real
            .as_ref()
            .map_or(String::new(), |real| format!(" Behind it is {}.", real.device));
        let report = match self.frames() {
            1 => "reports each packet".to_owned(),
            frames => format!("reports after {frames} packets or {}", Time(self.tx_delay_ns())),
        };
        format!(
            "The device sends {} from a ring of {} descriptors and {report}; above it is \
             {above}.{behind}",
            bits_per_second(self.rate.0 as f64),
            self.ring
        )
    }
}

impl Bql {
    pub(super) fn runs(self) -> &'static [bool] {
        match self {
            Self::Off => &[false],
            Self::On => &[true],
            Self::Both => &[false, true],
        }
    }
}

pub(super) fn variant(is_on: bool) -> &'static str {
    if is_on { "bql on" } else { "bql off" }
}

/// Options of `towpath sim ping`.
#[derive(Debug, Clone)]
pub struct PingOptions {
    /// Address to ping, in 10.0.0.0/8.
    pub remote: Ipv4Addr,
    /// Time between two echo requests.
    pub interval: Time,
    /// Payload rate of the load. None means no load.
    pub data_rate: Option<Rate>,
    /// Payload length of the load's datagrams in bytes.
    pub size: u64,
    /// Period of the load.
    pub load: Load,
    /// Duration of the run.
    pub duration: Time,
    /// Device of the sender.
    pub card: CardOptions,
}

impl PingOptions {
    /// Creates an example in which a host pings another one, partly under load on the same device.
    ///
    /// # Errors
    /// Returns a message about the first invalid option.
    pub fn example(&self) -> Result<Example, String> {
        let Self { remote, interval, size, duration, card, .. } = self;
        let local = beside(*remote);
        let from = card.source(local);
        let mut text = head("ping", *duration, card)?;
        text += &pair([local, *remote], card);
        let end = Time(duration.0.saturating_sub(NS));
        let start = Time(NS.min(duration.0 / 2));
        text += &ping_flow("client", "server", start, end, *interval)?;
        let mut about = format!("{from} pings {remote} every {interval}.");
        if let Some(rate) = self.data_rate {
            let Load { from, to, .. } = check(self.load, *duration)?;
            text += &format!(
                "\n[[flow]]\nname = \"load\"\nkind = \"onoff\"\ntransport = \"udp\"\non = \"1s\"\n\
                 off = \"0s\"\nrate = \"{}\"\nsize = {size}\nfrom = \"client\"\n\
                 to = \"server\"\nstart = \"{}\"\nstop = \"{}\"\n{}",
                rate.exact(),
                from.exact(),
                to.exact(),
                card.port()
            );
            about += &format!(
                " From {from} to {to} it also sends UDP datagrams of {size} bytes, {} of payload.",
                bits_per_second(rate.0 as f64)
            );
        }
        about = format!("{about} {}", card.words());
        text += &card.variants("link");
        let example = Example::of_scenario("ping", about, text)?;
        Ok(Example {
            pings: Some(Pings {
                remote: remote.to_string(),
                start_ns: start.0,
                interval_ns: interval.0,
            }),
            load: self.data_rate.map(|_| self.load),
            ..example
        })
    }
}

/// Options of `towpath sim onoff`.
#[derive(Debug, Clone)]
pub struct OnOffOptions {
    /// Address of the sender.
    pub client: Ipv4Addr,
    /// Address of the sink.
    pub server: Ipv4Addr,
    /// Transport protocol.
    pub transport: LoadTransport,
    /// Payload rate during on phases.
    pub data_rate: Rate,
    /// Payload length of a datagram in bytes.
    pub size: u64,
    /// Lengths of the on and off phases.
    pub phases: [Time; 2],
    /// Whether the lengths of phases are exponentially distributed.
    pub is_random: bool,
    /// Period of the traffic.
    pub load: Load,
    /// Interval of echo requests. None means no echo requests.
    pub ping: Option<Time>,
    /// Duration of the run.
    pub duration: Time,
    /// Device of the sender.
    pub card: CardOptions,
}

impl OnOffOptions {
    /// Creates an example with on-off traffic to a sink, while echo requests measure the latency.
    ///
    /// # Errors
    /// Returns a message about the first invalid option.
    pub fn example(&self) -> Result<Example, String> {
        let Self { client, server, size, duration, card, .. } = self;
        let Load { from, to, .. } = check(self.load, *duration)?;
        let mut text = head("onoff", *duration, card)?;
        text += &pair([*client, *server], card);
        // Shift the echo requests, so that none coincides with the beginning of a phase.
        let start = Time(from.0.saturating_sub(NS) + NS / 20);
        let end = Time((to.0 + NS).min(duration.0));
        if let Some(interval) = self.ping {
            text += &ping_flow("client", "server", start, end, interval)?;
        }
        let (transport, more) = match self.transport {
            LoadTransport::Tcp => ("TCP", String::new()),
            LoadTransport::Udp => ("UDP", format!("transport = \"udp\"\nsize = {size}\n")),
        };
        let [on, off] = self.phases;
        let lengths = if self.is_random { "exponential" } else { "constant" };
        text += &format!(
            "\n[[flow]]\nname = \"load\"\nkind = \"onoff\"\n{more}on = \"{}\"\noff = \"{}\"\n\
             lengths = \"{lengths}\"\nrate = \"{}\"\nfrom = \"client\"\nto = \"server\"\n\
             start = \"{}\"\nstop = \"{}\"\n{}",
            on.exact(),
            off.exact(),
            self.data_rate.exact(),
            from.exact(),
            to.exact(),
            card.port()
        );
        text += &card.variants("link");
        let about = format!(
            "{} sends {} over {transport} to {server} from {from} to {to}, {on} on and {off} \
             off{}. {}",
            card.source(*client),
            bits_per_second(self.data_rate.0 as f64),
            if self.is_random { " in the mean" } else { "" },
            card.words()
        );
        let example = Example::of_scenario("onoff", about, text)?;
        let phases = Some(self.phases).filter(|[_, off]| off.0 > 0 && !self.is_random);
        let pings = self.ping.map(|interval| Pings {
            remote: server.to_string(),
            start_ns: start.0,
            interval_ns: interval.0,
        });
        let load = Some(Load { phases, ..self.load });
        Ok(Example { pings, load, ..example })
    }
}

/// Options of `towpath sim tc`.
#[derive(Debug, Clone)]
pub struct TcOptions {
    /// Address of the source.
    pub source: Ipv4Addr,
    /// Address of the sink behind the router.
    pub server: Ipv4Addr,
    /// Rate of the link from the source to the router.
    pub in_rate: Rate,
    /// Transport protocol of the load.
    pub transport: LoadTransport,
    /// Payload rate of datagrams. TCP ignores it.
    pub data_rate: Rate,
    /// Period of the load.
    pub load: Load,
    /// Interval of echo requests. None means no echo requests.
    pub ping: Option<Time>,
    /// Duration of the run.
    pub duration: Time,
    /// Outgoing device of the router.
    pub card: CardOptions,
}

impl TcOptions {
    /// Creates an example with traffic control at the bottleneck link of a router, while echo
    /// requests measure the latency.
    ///
    /// # Errors
    /// Returns a message about the first invalid option.
    pub fn example(&self) -> Result<Example, String> {
        let Self { source, server, in_rate, data_rate, duration, card, .. } = self;
        let Load { from, to, .. } = check(self.load, *duration)?;
        let mut text = head("tc", *duration, card)?;
        text += &format!(
            "\n[[host]]\nname = \"source\"\n{}\n[[host]]\nname = \"sink\"\n{}\n[[switch]]\n\
             name = \"router\"\n\n\
             [[link]]\nname = \"out\"\nbetween = [\"router\", \"sink\"]\n{}\n\
             [[link]]\nname = \"in\"\nbetween = [\"source\", \"router\"]\nrate = \"{}\"\n\
             delay = \"{}\"\n",
            card.sender(*source),
            card.receiver(*server),
            card.keys(),
            in_rate.exact(),
            card.delay.exact()
        );
        let end = Time(duration.0.saturating_sub(NS));
        let start = Time(NS.min(duration.0 / 2));
        if let Some(interval) = self.ping {
            text += &ping_flow("source", "sink", start, end, interval)?;
        }
        let (transport, kind) = match self.transport {
            LoadTransport::Tcp => {
                ("over a TCP connection".to_owned(), "kind = \"bulk\"".to_owned())
            }
            LoadTransport::Udp => {
                let rate = bits_per_second(data_rate.0 as f64);
                let exact = data_rate.exact();
                let kind = format!("kind = \"cbr\"\nrate = \"{exact}\"\nsize = 1400");
                (format!("UDP datagrams of {rate}"), kind)
            }
        };
        text += &format!(
            "\n[[flow]]\nname = \"load\"\n{kind}\nfrom = \"source\"\nto = \"sink\"\n\
             start = \"{}\"\nstop = \"{}\"\n{}",
            from.exact(),
            to.exact(),
            card.port()
        );
        text += &card.variants("out");
        let about = format!(
            "{} sends {transport} to {server} from {from} to {to}, by {} to a router. {}",
            card.source(*source),
            bits_per_second(in_rate.0 as f64),
            card.words()
        );
        let example = Example::of_scenario("tc", about, text)?;
        let pings = self.ping.map(|interval| Pings {
            remote: server.to_string(),
            start_ns: start.0,
            interval_ns: interval.0,
        });
        Ok(Example { pings, load: Some(self.load), ..example })
    }
}

/// Nanoseconds per second.
const NS: u64 = 1_000_000_000;

pub(super) fn head(name: &str, duration: Time, card: &CardOptions) -> Result<String, String> {
    card.check()?;
    let sample = sample_of(card.every.0, duration.0)?;
    let title = format!("The example {name}");
    let (duration, sample) = (duration.exact(), Time(sample).exact());
    Ok(format!("title = \"{title}\"\nduration = \"{duration}\"\nsample = \"{sample}\"\n"))
}

pub(super) fn pair([client, server]: [Ipv4Addr; 2], card: &CardOptions) -> String {
    format!(
        "\n[[host]]\nname = \"client\"\n{}\n[[host]]\nname = \"server\"\n{}\n[[link]]\n\
         name = \"link\"\nbetween = [\"client\", \"server\"]\n{}",
        card.sender(client),
        card.receiver(server),
        card.keys()
    )
}

fn ping_flow(
    from: &str,
    to: &str,
    start: Time,
    end: Time,
    interval: Time,
) -> Result<String, String> {
    if start >= end {
        return Err(format!(
            "pings would begin at {start} and end at {end}, a second before the run; raise \
             `duration`"
        ));
    }
    Ok(format!(
        "\n[[flow]]\nname = \"ping\"\nkind = \"ping\"\nfrom = \"{from}\"\nto = \"{to}\"\n\
         start = \"{}\"\nstop = \"{}\"\ninterval = \"{}\"\n",
        start.exact(),
        end.exact(),
        interval.exact()
    ))
}

/// Checks that the load's period lies within the run.
fn check(load: Load, duration: Time) -> Result<Load, String> {
    if load.from >= load.to || load.to > duration {
        return Err(format!(
            "`load` is from {} to {}; expected a time in the run of {duration}",
            load.from, load.to
        ));
    }
    Ok(load)
}

/// Returns the previous address, or the next one where the previous would be a network address.
fn beside(address: Ipv4Addr) -> Ipv4Addr {
    let bits = address.to_bits();
    Ipv4Addr::from_bits(if bits & 0xff > 1 { bits - 1 } else { bits + 1 })
}
