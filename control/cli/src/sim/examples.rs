//! The options of `towpath sim ping|onoff|send|tc`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::net::Ipv4Addr;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use towpath_sim::{
    Example, Load, LoadTransport, OnOffOptions, PingOptions, Rate, SendMode, SendOptions,
    TcOptions, Time,
};

use super::card::CardArgs;
use super::common::time;
use crate::error::{ExitCode, Failure};

#[derive(Debug, Subcommand)]
pub enum ExampleCommand {
    /// Ping a host, with and without load at the sender's own device
    #[command(long_about = PING_ABOUT)]
    Ping(PingArgs),
    /// Send on-off traffic to a sink, while a ping measures
    #[command(name = "onoff", long_about = ONOFF_ABOUT)]
    OnOff(OnOffArgs),
    /// Send small packets as fast as the device takes them
    #[command(long_about = SEND_ABOUT)]
    Send(SendArgs),
    /// Control the queue at the narrow way out of a router, while a ping measures
    #[command(long_about = TC_ABOUT)]
    Tc(TcArgs),
}

#[derive(Debug, Args)]
pub struct PingArgs {
    /// Address that is pinged; in virtual time in 10.0.0.0/8
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.1.2", visible_alias = "server")]
    pub remote: Ipv4Addr,

    /// Time between two echo requests
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time)]
    pub interval: Time,

    /// Load: bits of payload per second in UDP datagrams, or "none"
    #[arg(long, value_name = "RATE", default_value = "120mbit", value_parser = rate_or_none)]
    pub data_rate: MaybeRate,

    /// Bytes of payload of each datagram, 16 to 1472
    #[arg(long, value_name = "BYTES", default_value = "1400")]
    pub size: u64,

    /// Time of the load
    #[arg(long, value_name = "FROM-TO", default_value = "7s-12s", value_parser = window)]
    pub load: Load,

    /// Length of the run
    #[arg(long, value_name = "TIME", default_value = "22s", value_parser = time)]
    pub duration: Time,

    /// Line rate of the simulated device, or of a simulated link before --device; without --device
    /// 100mbit unless given
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<Rate>,

    /// Time on the wire of the simulated device, one way; with --device it needs --rate
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = time)]
    pub delay: Time,

    /// Discipline above the device, in tc's words or by ns-3's name; "none" for the stack's queue
    #[arg(long, value_name = "QDISC", default_value = "pfifo_fast", value_parser = qdisc)]
    pub qdisc: String,

    #[command(flatten)]
    pub card: CardArgs,
}

#[derive(Debug, Args)]
pub struct OnOffArgs {
    /// Address that sends, in 10.0.0.0/8; with --device use --address
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.1.11", value_parser = address)]
    #[arg(conflicts_with = "device")]
    pub client: Ipv4Addr,

    /// Address of the sink; in virtual time in 10.0.0.0/8
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.1.22")]
    pub server: Ipv4Addr,

    /// Transport of the traffic
    #[arg(long, value_name = "PROTOCOL", default_value = "udp")]
    pub transport: TransportArg,

    /// Bits of payload per second while the traffic is on
    #[arg(long, value_name = "RATE", default_value = "1000mbit", value_parser = rate)]
    pub data_rate: Rate,

    /// Bytes of payload of each UDP datagram, 16 to 1472
    #[arg(long, value_name = "BYTES", default_value = "1400")]
    pub size: u64,

    /// Time for which the traffic is on
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub on: Time,

    /// Time for which the traffic is off; 0 for traffic that is always on
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub off: Time,

    /// Phases of exponential length around these means
    #[arg(long)]
    pub random: bool,

    /// Time of the traffic
    #[arg(long, value_name = "FROM-TO", default_value = "6s-12s", value_parser = window)]
    pub load: Load,

    /// Whether echo requests measure the latency
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "true")]
    #[arg(default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub ping: bool,

    /// Time between two echo requests
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = time)]
    pub interval: Time,

    /// Length of the run
    #[arg(long, value_name = "TIME", default_value = "14s", value_parser = time)]
    pub duration: Time,

    /// Line rate of the simulated device, or of a simulated link before --device; without --device
    /// 1gbit unless given
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<Rate>,

    /// Time on the wire of the simulated device, one way; with --device it needs --rate
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = time)]
    pub delay: Time,

    /// Discipline above the device, in tc's words or by ns-3's name; "none" for the stack's queue
    #[arg(long, value_name = "QDISC", default_value = "pfifo_fast", value_parser = qdisc)]
    pub qdisc: String,

    #[command(flatten)]
    pub card: CardArgs,
}

#[derive(Debug, Args)]
pub struct SendArgs {
    /// Way of sending
    #[arg(long, value_name = "MODE", default_value = "write")]
    pub mode: ModeArg,

    /// Number of packets
    #[arg(long, value_name = "NUMBER", default_value = "5000000")]
    pub packets: u64,

    /// Bytes of each frame, headers included: 14 to 1514, with sendto 58 to 1514
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub size: u64,

    /// Length of a run with --device
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub duration: Time,

    /// Destination of the datagrams of sendto; in virtual time in 10.0.0.0/8
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.1.2")]
    pub server: Ipv4Addr,

    /// Bits of payload per second of sendto; twice the rate of a simulated device unless given, or
    /// 100mbit with --device
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub data_rate: Option<Rate>,

    /// Pause of a writer that meets a stopped queue
    #[arg(long, value_name = "TIME", default_value = "10us", value_parser = time)]
    pub poll: Time,

    /// Line rate of the simulated device, or of a simulated link before --device; without --device
    /// 1gbit unless given
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<Rate>,

    /// Discipline above the device for sendto, in tc's words or by ns-3's name; "none" for the
    /// stack's queue
    #[arg(long, value_name = "QDISC", default_value = "pfifo_fast", value_parser = qdisc)]
    pub qdisc: String,

    #[command(flatten)]
    pub card: CardArgs,
}

#[derive(Debug, Args)]
pub struct TcArgs {
    /// Discipline at the router's way out, in tc's words or by ns-3's name; "none" for pfifo
    #[arg(long, value_name = "QDISC", default_value = "fq_codel", value_parser = qdisc)]
    #[arg(visible_alias = "queue-disc-type")]
    pub qdisc: String,

    /// Line rate of the router's device on the way out; 100mbit unless given, or none with --device
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<Rate>,

    /// Rate of the link from the source to the router
    #[arg(long, value_name = "RATE", default_value = "1gbit", value_parser = rate)]
    pub in_rate: Rate,

    /// Address of the source, in 10.0.0.0/8; with --device use --address
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.1.1", value_parser = address)]
    #[arg(conflicts_with = "device")]
    pub client: Ipv4Addr,

    /// Address of the sink behind the router; in virtual time in 10.0.0.0/8
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.2.1")]
    pub server: Ipv4Addr,

    /// Transport of the load: a connection that takes what it gets, or datagrams
    #[arg(long, value_name = "PROTOCOL", default_value = "tcp")]
    pub transport: TransportArg,

    /// Bits of payload per second of the datagrams
    #[arg(long, value_name = "RATE", default_value = "150mbit", value_parser = rate)]
    pub data_rate: Rate,

    /// Time of the load
    #[arg(long, value_name = "FROM-TO", default_value = "5s-25s", value_parser = window)]
    pub load: Load,

    /// Whether echo requests measure the latency
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "true")]
    #[arg(default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub ping: bool,

    /// Time between two echo requests
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time)]
    pub interval: Time,

    /// Length of the run
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub duration: Time,

    /// Time on each of both wires, one way
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = time)]
    pub delay: Time,

    #[command(flatten)]
    pub card: CardArgs,
}

/// `--transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportArg {
    /// A connection
    Tcp,
    /// Datagrams
    Udp,
}

/// `--mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Frames that are written into the device
    #[value(alias = "0")]
    Write,
    /// Datagrams of a UDP socket, through the stack and the discipline
    #[value(alias = "1")]
    Sendto,
}

/// A rate, or none.
#[derive(Debug, Clone, Copy)]
pub struct MaybeRate(Option<Rate>);

impl ExampleCommand {
    /// Returns the options of the device, which all examples have.
    pub fn card(&self) -> &CardArgs {
        match self {
            Self::Ping(PingArgs { card, .. })
            | Self::OnOff(OnOffArgs { card, .. })
            | Self::Send(SendArgs { card, .. })
            | Self::Tc(TcArgs { card, .. }) => card,
        }
    }

    /// Creates the example.
    ///
    /// # Errors
    /// Fails if the options are inconsistent.
    pub fn example(&self) -> Result<Example> {
        let example = match self {
            Self::Ping(args) => PingOptions {
                remote: args.remote,
                interval: args.interval,
                data_rate: args.data_rate.0,
                size: args.size,
                load: args.load,
                duration: args.duration,
                card: args.card.options(args.rate, "100mbit", args.delay, &args.qdisc),
            }
            .example(),
            Self::OnOff(args) => OnOffOptions {
                client: args.client,
                server: args.server,
                transport: args.transport.into(),
                data_rate: args.data_rate,
                size: args.size,
                phases: [args.on, args.off],
                is_random: args.random,
                load: args.load,
                ping: args.ping.then_some(args.interval),
                duration: args.duration,
                card: args.card.options(args.rate, "1gbit", args.delay, &args.qdisc),
            }
            .example(),
            Self::Send(args) => SendOptions {
                mode: match args.mode {
                    ModeArg::Write => SendMode::Write,
                    ModeArg::Sendto => SendMode::Sendto,
                },
                packets: args.packets,
                size: args.size,
                poll: args.poll,
                server: args.server,
                data_rate: args.data_rate.or_else(|| args.card.usual_data_rate()),
                duration: args.duration,
                card: args.card.options(args.rate, "1gbit", Time(0), &args.qdisc),
            }
            .example(),
            Self::Tc(args) => TcOptions {
                source: args.client,
                server: args.server,
                in_rate: args.in_rate,
                transport: args.transport.into(),
                data_rate: args.data_rate,
                load: args.load,
                ping: args.ping.then_some(args.interval),
                duration: args.duration,
                card: args.card.options(args.rate, "100mbit", args.delay, &args.qdisc),
            }
            .example(),
        };
        example.map_err(|message| Failure::error(ExitCode::Usage, message))
    }
}

impl From<TransportArg> for LoadTransport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Tcp => Self::Tcp,
            TransportArg::Udp => Self::Udp,
        }
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    Rate::parse(text).ok_or_else(|| "expected a rate above 0 with its unit, as 100mbit".into())
}

fn rate_or_none(text: &str) -> Result<MaybeRate, String> {
    if text == "none" { Ok(MaybeRate(None)) } else { rate(text).map(|rate| MaybeRate(Some(rate))) }
}

fn address(text: &str) -> Result<Ipv4Addr, String> {
    let address: Option<Ipv4Addr> = text.parse().ok();
    let inside = address.filter(|ip| ip.octets()[0] == 10 && !matches!(ip.octets()[3], 0 | 255));
    inside.ok_or_else(|| "expected an IPv4 address in 10.0.0.0/8, as 10.0.1.2".into())
}

fn window(text: &str) -> Result<Load, String> {
    let wrong = || "expected two times, as 7s-12s".to_owned();
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let from = Time::parse(from).ok_or_else(wrong)?;
    let to = Time::parse(to).filter(|to| *to > from).ok_or_else(wrong)?;
    Ok(Load { from, to, phases: None })
}

fn qdisc(text: &str) -> Result<String, String> {
    if text == "none" { Ok(text.to_owned()) } else { towpath_sim::qdisc_words(text) }
}

const PING_ABOUT: &str = "\
Ping a host, with and without load at the sender's own device.

A host sends an echo request every half second. For five seconds it also sends UDP datagrams, \
faster than its device: they fill the discipline and the device's ring, and echo requests wait \
behind them. Lines show the echo replies, the queue, the bytes in the device, and the packets \
sent; the end compares the latency with and without load, and with and without byte queue \
limits.

  towpath sim ping                       pfifo_fast: the queue itself is the delay
  towpath sim ping --qdisc fq_codel      with limits the ping passes the load";

const ONOFF_ABOUT: &str = "\
Send on-off traffic to a sink, while a ping measures.

A client sends for a second and is silent for a second, over UDP or TCP. Lines show the echo \
replies, the queue, the bytes in the device, and the packets sent.

  towpath sim onoff --transport tcp
  towpath sim onoff --data-rate 95mbit --rate 100mbit --random
  towpath sim onoff --scenario > onoff.toml      the same as a scenario, to be changed";

const SEND_ABOUT: &str = "\
Send small packets as fast as the device takes them.

With --mode write a program writes frames into the device; when the queue is stopped it looks \
again after --poll. With --mode sendto a UDP socket sends datagrams through the stack and the \
discipline, twice as fast as the device, and what the discipline drops has failed. Lines show \
the packets sent in each second.

  towpath sim send                       1.4 million frames a second on a link of 1 Gbit/s
  towpath sim send --poll 1ms            a writer that looks too seldom
  towpath sim send --mode sendto --packets 500000";

const TC_ABOUT: &str = "\
Control the queue at the narrow way out of a router, while a ping measures.

A source sends to a sink by a router, whose way out is slower than the way in. Packets wait in \
the discipline, or below it in the ring of the device, where nothing can sort or drop them: \
byte queue limits keep the ring as empty as it can be.

  towpath sim tc                         fq_codel, without and with byte queue limits
  towpath sim tc --qdisc pfifo_fast      a queue that does not control anything
  towpath sim tc --qdisc 'codel target 2ms' -o tc.html";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::sim::args::SimCommand;
    use crate::sim::card::BqlArg;

    fn example(words: &[&str]) -> Result<ExampleCommand, clap::Error> {
        match Cli::try_parse_from(["towpath", "sim"].iter().chain(words))?.command {
            Command::Sim(args) => match args.command {
                Some(SimCommand::Example(example)) => Ok(example),
                other => panic!("{other:?} is no example"),
            },
            _ => unreachable!("sim was given"),
        }
    }

    #[test]
    fn each_example_runs_with_its_defaults_and_has_a_scenario() {
        for (name, has_scenario) in [("ping", true), ("onoff", true), ("send", false), ("tc", true)]
        {
            let example = example(&[name]).expect(name).example().expect(name);
            assert_eq!((example.name, example.scenario.is_some()), (name, has_scenario));
        }
        let sendto = example(&["send", "--mode", "sendto"]).expect("it is parsed");
        assert!(sendto.example().expect("it fits").scenario.is_some());
    }

    #[test]
    fn a_real_device_is_the_bottleneck_unless_a_rate_is_given() {
        let text = |words: &[&str]| {
            let card = ["--device", "packet:eth1", "--address", "192.0.2.11/24"];
            let words = [words, &["--server", "192.0.2.1"], &card].concat();
            example(&words).expect("it is parsed").example().expect("it fits").scenario
        };
        for name in ["ping", "onoff", "tc"] {
            let scenario = text(&[name]).expect("a scenario");
            assert!(scenario.contains("address = \"192.0.2.11/24\""), "{scenario}");
            assert!(scenario.contains("device = \"packet:eth1\""), "{scenario}");
            assert!(scenario.contains("device = { ring = 256 }"), "{scenario}");
            let limited = text(&[name, "--rate", "50mbit"]).expect("a scenario");
            assert!(limited.contains("rate = \"50mbit\""), "{limited}");
        }
        assert!(text(&["send"]).is_none(), "frames are written into the device");
        assert!(text(&["send", "--mode", "sendto"]).is_some());
    }

    #[test]
    fn values_that_may_be_left_out_mean_on() {
        let bql = |words: &[&str]| example(words).expect("it is parsed").card().bql;
        assert_eq!(bql(&["tc"]), BqlArg::Both);
        assert_eq!(bql(&["tc", "--bql"]), BqlArg::On);
        assert_eq!(bql(&["tc", "--bql=false"]), BqlArg::Off);
        let Ok(ExampleCommand::Tc(args)) = example(&["tc", "--ping=false"]) else { panic!("tc") };
        assert!(!args.ping);
    }

    #[test]
    fn mistakes_name_the_option_and_what_is_expected() {
        let cases = [
            (&["tc", "--qdisc", "fq_codl"][..], "did you mean `fq_codel`?"),
            (&["tc", "--rate", "100"], "expected a rate above 0 with its unit"),
            (&["ping", "--remote", "192.0.2"], "invalid IPv4 address syntax"),
            (&["tc", "--client", "192.0.2.1"], "expected an IPv4 address in 10.0.0.0/8"),
            (&["ping", "--device", "packet:eth1"], "--address <ADDRESS/LENGTH>"),
            (&["ping", "--port", "80"], "--device <DEVICE:PARAMETERS>"),
            (&["ping", "--load", "5s"], "expected two times, as 7s-12s"),
            (&["onoff", "--transport", "sctp"], "[possible values: tcp, udp]"),
            (&["onoff", "--bql=maybe"], "[possible values: off, on, both]"),
            (&["send", "--mode", "splice"], "[possible values: write, sendto]"),
            (&["send", "--transport", "udp"], "unexpected argument '--transport'"),
        ];
        for (words, wanted) in cases {
            let error = example(words).expect_err(&words.join(" "));
            assert_eq!(error.exit_code(), 2, "{words:?}");
            assert!(error.to_string().contains(wanted), "{words:?}: {error}");
        }
        let cases = [
            (&["ping", "--remote", "192.0.2.1"][..], "is no IPv4 address in 10.0.0.0/8"),
            (&["tc", "--load", "5s-40s"], "expected a time in the run of 30.0 s"),
            (&["tc", "--ring", "0"], "expected 1 to 65536"),
            (&["tc", "--ring", "16", "--tx-frames", "17"], "expected 1 to 16"),
            (&["tc", "--every", "1us"], "`every` is 1.00 us; expected 15.0 ms to 30.0 s"),
            (&["onoff", "--client", "10.0.1.22"], "the address 10.0.1.22 is that of"),
            (&["ping", "--size", "9000"], "`size = 9000`: expected 16 to 1472"),
            (&["send", "--size", "2000"], "`size` is 2000; expected 14 to 1514"),
            (&["send", "--mode", "sendto", "--size", "50"], "expected 58 to 1514"),
            (&["send", "--poll", "0"], "`poll` is 0"),
        ];
        for (words, wanted) in cases {
            let error = example(words).expect("it is parsed").example().expect_err("it is wrong");
            assert!(error.to_string().contains(wanted), "{words:?}: {error}");
        }
    }
}
