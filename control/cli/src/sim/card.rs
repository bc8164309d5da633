//! Options of the device of `towpath sim ping|onoff|send|tc`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::net::{IpAddr, Ipv4Addr};

use clap::{Args, ValueEnum};
use towpath_sim::{Bql, CardOptions, Rate, RealCard, Time};
use towpath_uplink::parse_cidr;
use towpath_wire::Prefix;

use super::common::{CommonArgs, time};

/// The device, and what is printed.
#[derive(Debug, Args)]
pub struct CardArgs {
    /// Byte queue limits: a run with them, one without, or both side by side
    #[arg(long, value_name = "WHEN", num_args = 0..=1, default_value = "both")]
    #[arg(default_missing_value = "on", require_equals = true)]
    pub bql: BqlArg,

    /// Descriptors of the device's ring, 1 to 65536
    #[arg(long, value_name = "NUMBER", default_value = "256")]
    pub ring: usize,

    /// Sent packets after which the device reports them; 32, or half of a small ring, unless given
    #[arg(long, value_name = "NUMBER")]
    pub tx_frames: Option<usize>,

    /// Longest time until that report; with 0 the device reports each packet when it is sent. With
    /// --device it needs --rate
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = time)]
    pub tx_delay: Time,

    /// Time between two lines of statistics
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub every: Time,

    /// Real device in place of the simulated one, as packet:eth1, and real time
    ///
    /// The sender stays simulated, with an Ethernet address of its own. The real host with the
    /// address of the receiver is behind the device. Byte queue limits and the queueing discipline
    /// work on the frames that the device has taken and not sent. A device that does not report
    /// these sends frames at once.
    ///
    /// DEVICE is tap, packet, xdp, dpdk or stream; `towpath run --help` has the parameters.
    /// lent:SOCKET is a device of `towpath sim lend`.
    #[arg(long, value_name = "DEVICE:PARAMETERS", requires = "address")]
    pub device: Option<String>,

    /// Address of the simulated sender on the network of --device, as 10.0.1.11/24
    #[arg(long, value_name = "ADDRESS/LENGTH", requires = "device", value_parser = ipv4_cidr)]
    pub address: Option<Prefix>,

    /// Router to the receiver, if that is not in the network of --address
    #[arg(long, value_name = "ADDRESS", requires = "device")]
    pub gateway: Option<Ipv4Addr>,

    /// Port of the receiver that gets the load; 8000 unless given
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
    /// Both, side by side
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
