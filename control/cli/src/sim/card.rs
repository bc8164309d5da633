//! Options of the device of `towpath sim ping|onoff|send|tc`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::net::{IpAddr, Ipv4Addr};

use clap::{Args, ValueEnum};
use towpath_sim::{Bql, CardOptions, Rate, RealCard, Time};
use towpath_uplink::parse_cidr;
use towpath_wire::Prefix;

use super::common::{CommonArgs, time};

/// Options of the device and of the output.
#[derive(Debug, Args)]
pub struct CardArgs {
    /// Byte queue limits: a run with them (on), without them (off), or both side by side
    #[arg(long, value_name = "WHEN", num_args = 0..=1, default_value = "both")]
    #[arg(default_missing_value = "on", require_equals = true)]
    pub bql: BqlArg,

    /// Descriptors of the device's ring, 1 to 65536
    #[arg(long, value_name = "NUMBER", default_value = "256")]
    pub ring: usize,

    /// Number of sent packets after which the device reports them (default: 32, or half of a small
    /// ring)
    #[arg(long, value_name = "NUMBER")]
    pub tx_frames: Option<usize>,

    /// Maximum time until the device reports sent packets; with 0 the device reports each packet
    /// when it is sent. With --device, this option requires --rate
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = time)]
    pub tx_delay: Time,

    /// Time between two lines of statistics
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub every: Time,

    /// Real device in place of the simulated one, such as packet:eth1, in real time
    ///
    /// The sender is still simulated, and has an Ethernet address of its own. The receiver is the
    /// real host behind the device that has its address. Byte queue limits and the queueing
    /// discipline work on the frames that the device has accepted and not sent. If a device does
    /// not report these frames, its frames count as sent at once.
    ///
    /// DEVICE is tap, packet, xdp, dpdk or stream; `towpath run --help` describes the parameters.
    /// lent:SOCKET is a device of `towpath sim lend`.
    #[arg(long, value_name = "DEVICE:PARAMETERS", requires = "address")]
    pub device: Option<String>,

    /// Address of the simulated sender on the network of --device, as 10.0.1.11/24
    #[arg(long, value_name = "ADDRESS/LENGTH", requires = "device", value_parser = ipv4_cidr)]
    pub address: Option<Prefix>,

    /// Router to the receiver, if that is not in the network of --address
    #[arg(long, value_name = "ADDRESS", requires = "device")]
    pub gateway: Option<Ipv4Addr>,

    /// Port of the receiver to which the load is sent (default: 8000)
    #[arg(long, value_name = "PORT", requires = "device")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// Print the scenario of the example, as a file to change and run, and do nothing
    #[arg(long)]
    pub scenario: bool,

    #[command(flatten)]
    pub common: CommonArgs,
}

/// `--bql`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BqlArg {
    /// Without byte queue limits
    #[value(alias = "false")]
    Off,
    /// With byte queue limits
    #[value(alias = "true")]
    On,
    /// Runs without and with byte queue limits, to compare them
    Both,
}

impl CardArgs {
    /// Returns the options of the device. `usual` is the rate of a simulated one.
    pub fn options(
        &self,
        rate: Option<Rate>,
        usual: &str,
        delay: Time,
        qdisc: &str,
    ) -> CardOptions {
        CardOptions {
            rate: rate.or_else(|| Rate::parse(usual)).expect("the default is valid"),
            real: self.real(rate),
            ring: self.ring,
            tx_frames: self.tx_frames,
            tx_delay: self.tx_delay,
            qdisc: qdisc.to_owned(),
            bql: match self.bql {
                BqlArg::Off => Bql::Off,
                BqlArg::On => Bql::On,
                BqlArg::Both => Bql::Both,
            },
            every: self.every,
            delay,
        }
    }

    fn real(&self, rate: Option<Rate>) -> Option<RealCard> {
        let (device, address) = (self.device.as_ref()?, self.address?);
        Some(RealCard {
            device: device.clone(),
            address: address.to_string(),
            gateway: self.gateway,
            port: self.port.unwrap_or(PORT),
            rate,
        })
    }

    /// Returns the default rate of datagrams for a real device, whose rate is unknown.
    pub fn usual_data_rate(&self) -> Option<Rate> {
        self.device.as_ref().and_then(|_| Rate::parse("100mbit"))
    }
}

/// Default port of a real receiver, that of the sink in ns-3's example fd-netmap-emu-onoff.
const PORT: u16 = 8000;

fn ipv4_cidr(text: &str) -> Result<Prefix, String> {
    let prefix = parse_cidr(text)?;
    match prefix.addr() {
        IpAddr::V4(_) => Ok(prefix),
        IpAddr::V6(_) => Err("expected an IPv4 address, as 10.0.1.11/24".into()),
    }
}
