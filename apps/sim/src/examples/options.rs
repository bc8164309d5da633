//! Options of the examples, and the scenarios that are made of them.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use towpath_link::RingConfig;
use towpath_qdisc::QueueLimitsConfig;

use super::example::{Example, ExampleWork};
use super::frames::{Writing, wire_ns};
use super::load::{Load, NO_QDISC, Pings, SAMPLES_OF_LINE, sample_of};
use crate::scenario::DevicePlan;
use crate::units::{Rate, Time, bits_per_second};

/// Whether byte queue limits are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bql {
    /// A run without them.
    Off,
    /// A run with them.
    On,
    /// Both runs, side by side.
    Both,
}

/// Transport of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadTransport {
    /// A connection.
    Tcp,
    /// Datagrams.
    Udp,
}

/// The device of an example, with what is above and below.
#[derive(Debug, Clone)]
pub struct CardOptions {
    /// Bits per second on the wire.
    pub rate: Rate,
    /// Descriptors of the ring.
    pub ring: usize,
    /// Sent packets after which an interrupt reports them; a part of the ring without it.
    pub tx_frames: Option<usize>,
    /// Longest time until that interrupt.
    pub tx_delay: Time,
    /// Discipline above the device, in tc's words, or "none".
    pub qdisc: String,
    /// Byte queue limits.
    pub bql: Bql,
    /// Time between two lines of statistics.
    pub every: Time,
    /// Time on the wire, one way.
    pub delay: Time,
}

/// Bytes that an Ethernet frame takes on the wire beside its own: preamble, checksum and gap.
const ETHERNET_OVERHEAD: u64 = 24;
/// Bytes of the headers in front of a datagram: Ethernet, IPv4 and UDP.
const HEADERS_LEN: u64 = 42;
/// Sent packets that an interrupt reports unless something else is said.
const TX_FRAMES: usize = 32;

impl CardOptions {
    fn frames(&self) -> usize {
        let usual = TX_FRAMES.min(self.ring / 2).max(1);
        let usual = if self.tx_delay.0 == 0 { 1 } else { usual };
        self.tx_frames.unwrap_or(usual)
    }

    fn tx_delay_ns(&self) -> u64 {
        if self.frames() == 1 { 0 } else { self.tx_delay.0 }
    }

    /// Keys of a link with the device.
    fn keys(&self) -> String {
        let qdisc = match &*self.qdisc {
            NO_QDISC => String::new(),
            words => format!("qdisc = \"{words}\"\n"),
        };
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

    fn variants(&self, link: &str) -> String {
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

    fn words(&self) -> String {
        let report = match self.frames() {
            1 => "reports each packet".to_owned(),
            frames => format!("reports after {frames} packets or {}", Time(self.tx_delay_ns())),
        };
        format!(
            "The device sends {} from a ring of {} descriptors and {report}; above it is {}.",
            bits_per_second(self.rate.0 as f64),
            self.ring,
            if self.qdisc == NO_QDISC { "the queue of the stack" } else { &self.qdisc }
        )
    }
}

impl Bql {
    fn runs(self) -> &'static [bool] {
        match self {
            Self::Off => &[false],
            Self::On => &[true],
            Self::Both => &[false, true],
        }
    }
}

fn variant(is_on: bool) -> &'static str {
    if is_on { "bql on" } else { "bql off" }
}

/// `towpath sim ping`.
#[derive(Debug, Clone)]
pub struct PingOptions {
    /// Address that is pinged, in 10.0.0.0/8.
    pub remote: Ipv4Addr,
    /// Time between two echo requests.
    pub interval: Time,
    /// Bits of payload per second of the load; none without it.
    pub data_rate: Option<Rate>,
    /// Bytes of payload of its datagrams.
    pub size: u64,
    /// Time of the load.
    pub load: Load,
    /// Length of the run.
    pub duration: Time,
    /// Device.
    pub card: CardOptions,
}

impl PingOptions {
    /// A host pings another one, at times under load that leaves by the same device.
    ///
    /// # Errors
    /// The option that cannot be.
    pub fn example(&self) -> Result<Example, String> {
        let Self { remote, interval, size, duration, card, .. } = self;
        let local = beside(*remote);
        let mut text = head("ping", *duration, card)?;
        text += &pair([local, *remote], card);
        let end = Time(duration.0.saturating_sub(NS));
        let start = Time(NS.min(duration.0 / 2));
        text += &ping_flow("client", "server", start, end, *interval)?;
        let mut about = format!("{local} pings {remote} every {interval}.");
        if let Some(rate) = self.data_rate {
            let Load { from, to, .. } = check(self.load, *duration)?;
            text += &format!(
                "\n[[flow]]\nname = \"load\"\nkind = \"onoff\"\ntransport = \"udp\"\non = \"1s\"\n\
                 off = \"0s\"\nrate = \"{}\"\nsize = {size}\nfrom = \"client\"\n\
                 to = \"server\"\nstart = \"{}\"\nstop = \"{}\"\n",
                rate.exact(),
                from.exact(),
                to.exact()
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

/// `towpath sim onoff`.
#[derive(Debug, Clone)]
pub struct OnOffOptions {
    /// Address that sends.
    pub client: Ipv4Addr,
    /// Address of the sink.
    pub server: Ipv4Addr,
    /// Transport.
    pub transport: LoadTransport,
    /// Bits of payload per second while it is on.
    pub data_rate: Rate,
    /// Bytes of payload of a datagram.
    pub size: u64,
    /// Phases: on and off.
    pub phases: [Time; 2],
    /// The phases are of exponential length.
    pub is_random: bool,
    /// Time of the traffic.
    pub load: Load,
    /// Time between two echo requests; none without it.
    pub ping: Option<Time>,
    /// Length of the run.
    pub duration: Time,
    /// Device.
    pub card: CardOptions,
}

impl OnOffOptions {
    /// On-off traffic to a sink, while a ping measures.
    ///
    /// # Errors
    /// The option that cannot be.
    pub fn example(&self) -> Result<Example, String> {
        let Self { client, server, size, duration, card, .. } = self;
        let Load { from, to, .. } = check(self.load, *duration)?;
        let mut text = head("onoff", *duration, card)?;
        text += &pair([*client, *server], card);
        // Pings fall between the beginnings of phases.
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
             start = \"{}\"\nstop = \"{}\"\n",
            on.exact(),
            off.exact(),
            self.data_rate.exact(),
            from.exact(),
            to.exact()
        );
        text += &card.variants("link");
        let about = format!(
            "{client} sends {} over {transport} to {server} from {from} to {to}, {on} on and {off} \
             off{}. {}",
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

/// Way in which `towpath sim send` sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMode {
    /// Frames are written into the device.
    Write,
    /// Datagrams of a UDP socket, through the stack and the discipline.
    Sendto,
}

/// `towpath sim send`.
#[derive(Debug, Clone)]
pub struct SendOptions {
    /// Way of sending.
    pub mode: SendMode,
    /// Packets to send.
    pub packets: u64,
    /// Bytes of a frame, its Ethernet header included.
    pub size: u64,
    /// Pause of a writer that meets a stopped queue.
    pub poll: Time,
    /// Device.
    pub card: CardOptions,
}

/// Load of `send --mode sendto`, in parts of the line rate: a socket that is never idle.
const OVERLOAD: u64 = 2;

impl SendOptions {
    /// Small packets, as many as the device takes.
    ///
    /// # Errors
    /// The option that cannot be.
    pub fn example(&self) -> Result<Example, String> {
        match self.mode {
            SendMode::Write => self.written(),
            SendMode::Sendto => self.through_stack(),
        }
    }

    fn written(&self) -> Result<Example, String> {
        let Self { card, packets, size, poll, .. } = self;
        if poll.0 == 0 {
            return Err("`poll` is 0; expected more".into());
        }
        let ring = RingConfig {
            descriptors: card.ring,
            rate: card.rate.0,
            overhead: ETHERNET_OVERHEAD,
            frames: card.frames(),
            delay_ns: card.tx_delay_ns(),
        };
        // A run that is over before its first line has samples all the same.
        let all_ns = wire_ns(&DevicePlan { ring, limits: None }, *packets, *size);
        let line_ns = u64::try_from(all_ns).unwrap_or(u64::MAX).min(card.every.0);
        let writings = card.bql.runs().iter().map(|is_on| Writing {
            variant: variant(*is_on),
            device: DevicePlan { ring, limits: is_on.then(QueueLimitsConfig::default) },
            packets: *packets,
            bytes: *size,
            poll_ns: poll.0,
            sample_ns: (line_ns / SAMPLES_OF_LINE).max(1),
        });
        let writings: Vec<Writing> = writings.collect();
        writings.iter().try_for_each(Writing::check)?;
        let about = format!(
            "{packets} frames of {size} bytes are written into the device; a writer that meets a \
             stopped queue looks again after {poll}. {}",
            card.words().replace(&format!("; above it is {}", card.qdisc), "")
        );
        Ok(Example {
            name: "send",
            scenario: None,
            about,
            work: ExampleWork::Frames(writings),
            way: 0,
            pings: None,
            load: Some(ALWAYS),
            counts_failures: false,
        })
    }

    fn through_stack(&self) -> Result<Example, String> {
        let Self { card, packets, size, .. } = self;
        let Some(payload) = size.checked_sub(HEADERS_LEN).filter(|n| (16..=1472).contains(n))
        else {
            return Err(format!(
                "`size` is {size}; expected 58 to 1514 bytes with headers of 42 in front of a \
                 datagram"
            ));
        };
        let rate = u128::from(card.rate.0) * u128::from(OVERLOAD * payload)
            / u128::from(size + ETHERNET_OVERHEAD);
        // Datagrams leave the socket at this interval.
        let every_ns = (u128::from(payload) * 8_000_000_000 / rate.max(1)).max(1);
        let duration = u64::try_from(every_ns * u128::from(*packets)).unwrap_or(u64::MAX);
        let duration = Time(duration.max(card.every.0));
        let mut text = head("send", duration, card)?;
        text += &pair([Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 1, 2)], card);
        text += &format!(
            "\n[[flow]]\nname = \"load\"\nkind = \"cbr\"\nrate = \"{}\"\nsize = {payload}\n\
             from = \"client\"\nto = \"server\"\n",
            Rate(u64::try_from(rate.max(1)).unwrap_or(u64::MAX)).exact()
        );
        text += &card.variants("link");
        let about = format!(
            "A UDP socket sends {packets} datagrams, {size} bytes each with headers, {OVERLOAD} \
             times as fast as the device takes them. {}",
            card.words()
        );
        let example = Example::of_scenario("send", about, text)?;
        Ok(Example { load: Some(ALWAYS), counts_failures: true, ..example })
    }
}

/// `towpath sim tc`.
#[derive(Debug, Clone)]
pub struct TcOptions {
    /// Address of the source.
    pub source: Ipv4Addr,
    /// Address of the sink, behind the router.
    pub server: Ipv4Addr,
    /// Rate of the link from the source to the router.
    pub in_rate: Rate,
    /// Transport of the load.
    pub transport: LoadTransport,
    /// Bits of payload per second of datagrams; a connection takes what it gets.
    pub data_rate: Rate,
    /// Time of the load.
    pub load: Load,
    /// Time between two echo requests; none without it.
    pub ping: Option<Time>,
    /// Length of the run.
    pub duration: Time,
    /// Device of the router on the way out.
    pub card: CardOptions,
}

impl TcOptions {
    /// Traffic control at the narrow way out of a router, while a ping measures.
    ///
    /// # Errors
    /// The option that cannot be.
    pub fn example(&self) -> Result<Example, String> {
        let Self { source, server, in_rate, data_rate, duration, card, .. } = self;
        let Load { from, to, .. } = check(self.load, *duration)?;
        let mut text = head("tc", *duration, card)?;
        text += &format!(
            "\n[[host]]\nname = \"source\"\naddress = \"{source}\"\n\n[[host]]\nname = \"sink\"\n\
             address = \"{server}\"\n\n[[switch]]\nname = \"router\"\n\n\
             [[link]]\nname = \"out\"\nbetween = [\"router\", \"sink\"]\n{}\n\
             [[link]]\nname = \"in\"\nbetween = [\"source\", \"router\"]\nrate = \"{}\"\n\
             delay = \"{}\"\n",
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
             start = \"{}\"\nstop = \"{}\"\n",
            from.exact(),
            to.exact()
        );
        text += &card.variants("out");
        let about = format!(
            "{source} sends {transport} to {server} from {from} to {to}, by {} to a router. {}",
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

/// Load from the beginning to the end.
const ALWAYS: Load = Load { from: Time(0), to: Time(u64::MAX), phases: None };

/// A second in ns.
const NS: u64 = 1_000_000_000;

fn head(name: &str, duration: Time, card: &CardOptions) -> Result<String, String> {
    let sample = sample_of(card.every.0, duration.0)?;
    let title = format!("The example {name}");
    let (duration, sample) = (duration.exact(), Time(sample).exact());
    Ok(format!("title = \"{title}\"\nduration = \"{duration}\"\nsample = \"{sample}\"\n"))
}

fn pair([client, server]: [Ipv4Addr; 2], card: &CardOptions) -> String {
    format!(
        "\n[[host]]\nname = \"client\"\naddress = \"{client}\"\n\n[[host]]\nname = \"server\"\n\
         address = \"{server}\"\n\n[[link]]\nname = \"link\"\n\
         between = [\"client\", \"server\"]\n{}",
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

/// A window in the run.
fn check(load: Load, duration: Time) -> Result<Load, String> {
    if load.from >= load.to || load.to > duration {
        return Err(format!(
            "`load` is from {} to {}; expected a time in the run of {duration}",
            load.from, load.to
        ));
    }
    Ok(load)
}

/// The address before, or behind that of a network.
fn beside(address: Ipv4Addr) -> Ipv4Addr {
    let bits = address.to_bits();
    Ipv4Addr::from_bits(if bits & 0xff > 1 { bits - 1 } else { bits + 1 })
}
