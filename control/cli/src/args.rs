//! The command line: its commands and options, and the texts of `--help`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

mod capture;
mod device;
mod names;
mod netem;
pub mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use towpath_engine::BUSY_POLL;
use towpath_model::Word;
use towpath_tcp::{CongestionKind, TCP_DEFAULTS, TcpDefaultError, TcpDefaultRow, TcpDefaults};
use towpath_uplink::{DeviceSpec, DhcpSettings, Dns, PortRange, parse_cidr};
use towpath_wire::Prefix;

use crate::activation::PublishArg;
use crate::dhcp::parse_run_settings;
use crate::error::{ExitCode, Failure};

pub use capture::CaptureArgs;
pub use device::DeviceArgs;
pub use names::NameArgs;
pub use netem::NetemOption;
use values::parse_port_range;
pub use values::{
    Shards, StatsFormat, parse_dns, parse_microseconds, parse_mtu, parse_name, parse_nameserver,
    parse_number, parse_pid, parse_seconds, parse_shards, parse_user,
};

/// Run programs on a TCP/IP stack of their own.
#[derive(Debug, Parser)]
#[command(name = "towpath", version = env!("TOWPATH_VERSION"), about)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on a stack of its own
    #[command(override_usage = RUN_USAGE, long_about = RUN_ABOUT, after_long_help = RUN_AFTER)]
    Run(RunArgs),
    /// Show the sockets of running stacks
    #[command(long_about = SS_ABOUT)]
    Ss(crate::ss::SsArgs),
    /// Show and change addresses, routes, neighbours and links of a running stack
    #[command(long_about = IP_ABOUT, after_long_help = IP_AFTER, override_usage = IP_USAGE)]
    Ip(crate::ip::IpArgs),
    /// Show and change the access list of a running router or run
    #[command(long_about = crate::acl::ABOUT, after_long_help = crate::acl::AFTER)]
    Acl(crate::acl::AclArgs),
    /// Show and change the address translation of a running router
    #[command(long_about = crate::conntrack::nat::ABOUT)]
    #[command(after_long_help = crate::conntrack::nat::AFTER)]
    Nat(crate::conntrack::nat::NatArgs),
    /// Show and delete the flows of a running router
    #[command(long_about = crate::conntrack::ABOUT, after_long_help = crate::conntrack::AFTER)]
    Conntrack(crate::conntrack::ConntrackArgs),
    /// Show the DNS forwarder of a running router, and empty its cache
    #[command(long_about = crate::dns::ABOUT, after_long_help = crate::dns::AFTER)]
    Dns(crate::dns::DnsArgs),
    /// Show and change the TCP settings of a running run or router
    #[command(long_about = crate::setting::ABOUT, after_long_help = crate::setting::AFTER)]
    Setting(crate::setting::SettingArgs),
    /// Show the ports of a running router or run
    #[command(long_about = crate::port::ABOUT, after_long_help = crate::port::AFTER)]
    Port(crate::port::PortArgs),
    /// Show the counters of a running stack
    #[command(long_about = STATS_ABOUT)]
    Stats(crate::counters::StatsArgs),
    /// Show live rates, drops, shards and connections of a running stack
    #[command(long_about = crate::top::ABOUT, after_long_help = crate::top::AFTER)]
    Top(crate::top::TopArgs),
    /// Print the metrics of running stacks for Prometheus, or serve them
    #[command(long_about = crate::metrics::ABOUT, after_long_help = crate::metrics::AFTER)]
    Metrics(crate::metrics::MetricsArgs),
    /// Run a scenario in a simulated network
    #[command(long_about = SIM_ABOUT)]
    Sim(Box<crate::sim::SimArgs>),
    /// Run packet scripts on the stack in virtual time
    #[command(long_about = crate::script::ABOUT, after_long_help = crate::script::AFTER)]
    Script(Box<crate::script::ScriptArgs>),
    /// Measure a server under load
    #[command(long_about = LOAD_ABOUT, after_long_help = LOAD_AFTER)]
    Load(Box<crate::load::LoadArgs>),
    /// Carry the traffic of a TUN device, of any program, by connections of this host
    #[command(long_about = crate::proxy::args::ABOUT, after_long_help = crate::proxy::args::AFTER)]
    Proxy(crate::proxy::args::Proxy),
    /// Give a virtual machine a network, without root
    #[command(long_about = crate::vhost::args::ABOUT, after_long_help = crate::vhost::args::AFTER)]
    Vhost(crate::vhost::VhostArgs),
    /// Forward packets between networks, as a router with rules
    #[command(long_about = crate::router::ABOUT, after_long_help = crate::router::AFTER)]
    Router(crate::router::RouterArgs),
    /// Show, compare and change the configuration of a running router
    #[command(long_about = crate::config::ABOUT, after_long_help = crate::config::AFTER)]
    Config(crate::config::ConfigArgs),
    /// Print a completion script for a shell
    #[command(long_about = COMPLETIONS_ABOUT)]
    Completions(crate::completions::CompletionsArgs),
    /// Print a manual page
    #[command(long_about = MAN_ABOUT)]
    Man {
        /// A command of towpath, as `run`, `proxy run` or `sim-tc`; towpath itself unless given
        command: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Forward a port of this host to the program: [[HOSTADDR:]HOSTPORT:]PORT[/tcp|/udp]
    ///
    /// HOSTADDR is 127.0.0.1 by default; IPv6 addresses need brackets. 0.0.0.0 makes the port
    /// reachable from other machines over IPv4, [::] over IPv6. Without HOSTPORT (80, 0.0.0.0::80),
    /// the host chooses a free port, which is printed on standard error when the run starts. Both
    /// ports may be ranges of the same length: 8000-8010:9000-9010. May be given several times. Not
    /// possible with a device such as --tap, because other hosts then reach the stack's own address
    /// directly.
    ///
    /// fd:NUMBER:PORT uses a socket that towpath has inherited, for example by systemd's socket
    /// activation. fd:NAME:PORT uses all sockets whose name in LISTEN_FDNAMES is NAME.
    #[arg(short, long, value_name = "PORTS", conflicts_with = "device")]
    pub publish: Vec<PublishArg>,

    /// Name of the run, for `towpath ip --name` and `towpath stats --name`
    ///
    /// Letters, digits and underscores, at most 32. No other run of this user may have it.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<Word>,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// Address of the stack with its prefix length, IPv4 or IPv6
    ///
    /// May be given several times. The default is 10.0.2.15/24 and fd00:2::15/64. With --tap, the
    /// default is 10.77.0.2/24 and fd00:77::2/64, or the next networks (10.77.1.2/24 and so on)
    /// that this host does not use. The gateway, or with --tap this host, gets the first address of
    /// the network that the stack does not have. With --packet and --xdp, the stack assumes its
    /// router at this address, unless the kernel knows another router.
    #[arg(long, value_name = "CIDR", value_parser = parse_cidr)]
    pub address: Vec<Prefix>,

    /// Obtain the address from a DHCP server on the link: [lease=FILE][,hostname=NAME]
    ///
    /// With --packet, or with --tap and a server on this host. The program starts when the stack
    /// has an address. Routes and the nameserver are those of the lease, unless --dns is given.
    /// lease=FILE keeps the lease for the next start; otherwise it is released at the end.
    #[arg(long, value_name = "OPTIONS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "", value_parser = parse_run_settings)]
    #[arg(conflicts_with_all = ["address", "ports", "inline"])]
    pub dhcp: Option<DhcpSettings>,

    /// Ports that the stack takes over on the interface's own addresses: tcp:80, udp:53,
    /// tcp:8000-8010
    ///
    /// For --packet and --xdp. The stack then uses the interface's Ethernet address and IP
    /// addresses, or only the IP addresses that --address names. The kernel keeps all other ports,
    /// and does not answer packets to these ports. Intended for servers: replies to connections
    /// that the program itself opens go to the kernel.
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = parse_port_range)]
    pub ports: Vec<PortRange>,

    /// Largest IP packet on the link, in bytes: 1280 to 65535
    ///
    /// Unless given: 16384, or with --tap or --netem 1500. With --tap at most 65521, with --packet
    /// and --xdp at most the interface's, which is also its default.
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,

    /// Simulated network between the program and its uplink, described by a TOML file
    ///
    /// The host of the scenario with device = "program" stands for the program. The host with
    /// device = "uplink" stands for the gateway, or for the network behind a device such as --tap.
    /// Links, queues and flows of other hosts work as in `towpath sim`, in real time. The flows end
    /// after the duration of the scenario, and the links at the end of the run.
    #[arg(long, value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with = "inline")]
    pub through: Option<PathBuf>,

    #[command(flatten)]
    pub capture: CaptureArgs,

    /// Print the counters of the stack to standard error at the end
    #[arg(long, value_name = "FORMAT", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "text")]
    pub stats: Option<StatsFormat>,

    /// Refuse to execute programs whose sockets cannot be on the stack
    ///
    /// Programs that PROGRAM executes may be statically linked, written in Go, set-user-ID, built
    /// for another C library, or in a chroot. Their sockets are then those of this host. Each of
    /// these programs is reported once on standard error. With --strict, its execution fails with
    /// EACCES ("Permission denied").
    #[arg(long)]
    pub strict: bool,

    /// Seconds between SIGTERM and SIGKILL for processes that PROGRAM leaves behind
    ///
    /// If PROGRAM has ended after SIGTERM, SIGINT, SIGQUIT or SIGHUP, all remaining processes of
    /// the run get SIGTERM. Processes that still run after this time get SIGKILL. With 0, all of
    /// them get SIGKILL at once.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub stop_timeout: Duration,

    /// Maximum seconds between a signal and PROGRAM's end for which the signal counts as the cause
    ///
    /// Applies to SIGINT, SIGQUIT and SIGHUP, which programs may also handle without ending. Tests
    /// use a shorter time.
    #[arg(long, value_name = "SECONDS", default_value = "10", hide = true)]
    #[arg(value_parser = parse_seconds)]
    pub survived_after: Duration,

    /// Run the stack in PROGRAM's own process, on PROGRAM's threads while they wait for sockets
    ///
    /// A request and its answer then need no switch between processes. Intended for servers and
    /// clients that consist of one process, with an event loop or with threads that block. Programs
    /// that PROGRAM starts also use the stack, until PROGRAM ends. Not for a PROGRAM that replaces
    /// itself by another program, becomes a daemon, or forbids itself system calls. Not possible
    /// with --pcap.
    #[arg(long)]
    pub inline: bool,

    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// Do not let the program reach services of this host through the gateway address
    #[arg(long, conflicts_with = "device")]
    pub no_host_loopback: bool,

    /// Nameserver for the program: an address, or `none`
    ///
    /// Without a device, the program sends queries to 10.0.2.3 or fd00:2::3, and the gateway
    /// forwards them to this nameserver. By default, the gateway forwards them to the nameservers
    /// in this host's /etc/resolv.conf, even if these are on this host's loopback. If one fails,
    /// the gateway tries the next one. In /etc/resolv.conf, the program finds 10.0.2.3 in place of
    /// nameservers on loopback. If this option is given, 10.0.2.3 replaces all nameservers. With a
    /// device, the program finds this nameserver in /etc/resolv.conf, and must be able to reach it.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_dns)]
    pub dns: Option<Dns>,

    #[command(flatten)]
    pub names: NameArgs,

    /// Number of threads that run the stack: 1, 2, 4, 8, 16 or `auto`
    ///
    /// Each connection stays on one thread, and does not become faster. Many connections together
    /// become faster if one thread keeps a processor busy while other processors are free. `auto`
    /// uses one thread on machines with up to 4 processors. On larger machines it adds threads on
    /// demand, on at most a quarter of the processors. Whenever a thread has used a processor for
    /// 80 of 100 ms, a new thread takes over half of its connections. `auto` is one thread if an
    /// existing --tap device was created without multi_queue, or if towpath may not load BPF
    /// programs, as root may. With --inline there is one thread.
    #[arg(long, value_name = "NUMBER", default_value = "auto", value_parser = parse_shards)]
    pub shards: Shards,

    /// Maximum microseconds for which the stack polls for work before it sleeps
    ///
    /// Waking a thread takes 10 to 50 µs. Requests that follow each other closely are answered
    /// sooner, and more of them, if the thread stays awake between them. While polling, the thread
    /// uses a processor, but yields it to other threads. The thread polls only as long as polling
    /// usually finds work, so an idle stack sleeps. With 0, the stack sleeps at once. The stack
    /// also sleeps at once on a single processor, with a CPU quota, and while other threads
    /// compute. At most 1000.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = BUSY_POLL.as_micros() as u32)]
    #[arg(value_parser = parse_microseconds)]
    pub busy_poll: u32,

    /// Add delay, loss and a maximum rate to the link, in the syntax of tc-netem(8)
    ///
    /// For example: 'delay 50ms 5ms loss 1% rate 20mbit limit 100'. Both directions are affected: a
    /// delay of 50ms gives a round trip of 100 ms. To affect only packets that the program sends or
    /// receives, begin with `out` or `in`. The option may then be given once for each direction.
    ///
    /// delay TIME [JITTER [CORRELATION]] [distribution uniform]; loss [random] PERCENT
    /// [CORRELATION], or loss gemodel P [R [1-H [1-K]]]; ecn; duplicate, corrupt PERCENT
    /// [CORRELATION]; reorder PERCENT [CORRELATION] [gap N]; rate RATE; limit PACKETS (1000); seed
    /// NUMBER. Units are those of tc: 50ms, 20mbit.
    ///
    /// Loopback traffic is not affected. Packets have at most 1500 bytes, unless --mtu is given.
    /// --stats shows the counters of the link. --pcap records packets at the program's end of the
    /// link. Not possible with --shards 2 or more.
    #[arg(long, value_name = "LINK")]
    pub netem: Vec<NetemOption>,

    /// Congestion control of TCP connections, unless the program chooses another [default: cubic]
    #[arg(long, value_name = "NAME", value_parser = congestion_names())]
    pub congestion: Option<CongestionKind>,

    /// Set defaults of TCP connections, as sysctl(8) does for the kernel
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_tcp, long_help = tcp_help())]
    pub tcp: Vec<String>,

    /// The program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

impl RunArgs {
    /// Checks that no other option conflicts with `--inline`.
    ///
    /// # Errors
    /// Returns an error if another option needs the stack in towpath's process.
    pub fn check_inline(&self) -> Result<()> {
        let device = self.device.device().map(DeviceSpec::driver);
        let (option, why) = match device.map(|driver| (driver.name, driver.obstacle_to_inline())) {
            _ if !self.inline => return Ok(()),
            _ if self.capture.pcap.is_some() => {
                ("pcap", "PROGRAM's process has the packets, which towpath cannot record")
            }
            Some((name, Some(why))) => (name, why),
            _ => return Ok(()),
        };
        let message = format!("--{option} with --inline: {why}; leave one of the two out");
        Err(Failure::error(ExitCode::Failed, message))
    }

    /// Returns the number of shards of the stack.
    ///
    /// # Errors
    /// Returns an error if several shards were requested, but `--inline` or `--netem` allows only
    /// one.
    pub fn shards(&self) -> Result<usize> {
        match self.shards {
            Shards::Count(count) if self.inline && count > 1 => {
                let message = format!(
                    "--shards {count}: with --inline the stack is one part, which the threads of \
                     PROGRAM turn; leave one of the two out"
                );
                Err(Failure::error(ExitCode::Failed, message))
            }
            Shards::Count(count) if !self.netem.is_empty() && count > 1 => {
                let message = format!(
                    "--shards {count}: with --netem the stack is one part, because its link has \
                     one queue; leave one of the two out"
                );
                Err(Failure::error(ExitCode::Failed, message))
            }
            Shards::Count(count) if self.through.is_some() && count > 1 => {
                let message = format!(
                    "--shards {count}: with --through the stack is one part, because the simulated \
                     network has one link to it; leave one of the two out"
                );
                Err(Failure::error(ExitCode::Failed, message))
            }
            _ if self.inline || self.through.is_some() || !self.netem.is_empty() => Ok(1),
            shards => Ok(shards.count()),
        }
    }
}

/// Checks a value of `--tcp`, and returns it unchanged.
fn parse_tcp(text: &str) -> Result<String, TcpDefaultError> {
    TcpDefaults::default().set_all(text)?;
    Ok(text.to_owned())
}

/// Returns the help text of `--tcp`, with the table of the TCP defaults.
fn tcp_help() -> String {
    let mut text = "Set defaults of TCP connections, as sysctl(8) does for the kernel\n\nA list \
                    NAME=VALUE,NAME=VALUE; the option may be repeated. NAME is one of these, or \
                    the name of Linux's sysctl below net.ipv4:\n"
        .to_owned();
    for TcpDefaultRow { name, sysctl, help, values, .. } in TCP_DEFAULTS {
        text += &format!("\n{name} ({sysctl}): {help}; {}", values());
    }
    text
}

/// Returns the parser for the names of `--congestion`.
fn congestion_names() -> impl TypedValueParser<Value = CongestionKind> {
    let value = |kind: &CongestionKind| {
        PossibleValue::new(kind.name()).aliases(kind.aliases()).help(kind.document())
    };
    PossibleValuesParser::new(CongestionKind::ALL.iter().map(value))
        .map(|word| CongestionKind::from_word(&word).expect("it is a possible value"))
}

// Write each paragraph on a single line, because clap wraps it to the width of the terminal. Keep
// aligned text short.

const LONG_ABOUT: &str = "\
Run programs on a TCP/IP stack of their own.

Towpath puts the sockets of an unmodified program on a complete TCP/IP stack in user space, beside \
the kernel's. It needs no root and no change to the program: its calls to the C library are served \
by a library that is loaded into it.";

const EXAMPLES: &str = "\
Examples:
  towpath run -p 8080:80 -- python3 -m http.server 80
      Serve port 80 without root; open http://127.0.0.1:8080
  towpath run -- curl https://example.org/
      A client needs no options
  towpath ss -ti
      What the connections are doing, from another terminal
  towpath proxy run -- ./static-or-go-program
      Run any program, in a network namespace
  sudo towpath proxy --tun tw0 --route 10.9.0.0/16 --interface eth0
      Carry the traffic of any program to a network
  towpath completions fish > ~/.config/fish/completions/towpath.fish
      Let the shell complete options

`towpath run --help` tells everything about running programs.";

const RUN_USAGE: &str = "towpath run [OPTIONS] [--] PROGRAM [ARGUMENTS]...";

const RUN_ABOUT: &str = "\
Run a program on a stack of its own.

PROGRAM and everything it starts have their TCP, UDP and ping sockets (IPv4 and IPv6) on one stack \
that lives in this process. Loopback is shared among them and separate from the host's. Name \
resolution by the C library, Unix sockets and everything else stay with the kernel.

Without --tap, a gateway in this process turns each flow into an ordinary socket of the host: the \
program reaches what this user can reach, and -p lets others reach the program. The stack is \
10.0.2.15 and fd00:2::15, the gateway 10.0.2.2 and fd00:2::2, DNS at 10.0.2.3 and fd00:2::3; a \
connection to the gateway's address reaches this host's loopback, unless --no-host-loopback is \
given.

Signals that towpath receives are passed on to PROGRAM. The run ends when PROGRAM and everything \
that it started have ended, and what they wrote is delivered. A run that was asked to end \
(SIGTERM, or SIGINT, SIGQUIT and SIGHUP unless PROGRAM goes on for 10 s after them) ends with \
PROGRAM: what is left then gets SIGTERM, and SIGKILL after --stop-timeout. When towpath is \
killed, everything that it started ends within a second.";

const RUN_AFTER: &str = "\
Exit status:
  PROGRAM's own; when a signal killed it, towpath dies by the same signal
  (a shell shows 128 and the signal's number).
  125  towpath itself failed: an option or argument, a port of -p that is
       taken, the device, the file of --pcap (then PROGRAM's own status, but
       for 0, where writing fails later), or a program that cannot be
       preloaded (statically linked, set-user-ID, written in Go, or built for
       another C library): `towpath proxy run` runs those
  126  PROGRAM was found but cannot be executed
  127  PROGRAM was not found

Environment:
  TOWPATH_PRELOAD  path of the preload library to use instead of the built-in
  XDG_RUNTIME_DIR  where the library and the sockets of `towpath ss` are kept,
                   if only this user and root can change what is there;
                   /tmp/towpath-UID otherwise. Root uses /run/towpath, or
                   /var/lib/towpath where /run does not allow execution
  PROGRAM gets LD_PRELOAD (the library, in front of what was there),
  TOWPATH_CONTROL, and UV_USE_IO_URING=0, so that Node.js uses ordinary calls.

Examples:
  towpath run -p 8080:80 -p 5353:53/udp -- ./server
      Two forwarded ports
  towpath run -p 80 -- ./server
      At a free port of this host; standard error says which
  towpath run -p 0.0.0.0:8080:80 -p '[::1]:8080:80' -- ./server
      Offered to other machines by IPv4, to this one by IPv6
  sudo towpath run --tap -- iperf3 -s
      An address of its own, 10.77.0.2, on a device; try iperf3 -c 10.77.0.2
  sudo towpath run --packet eth1 --address 192.0.2.7/24 -- nginx
      A host of the network of eth1, which the kernel uses as well
  sudo towpath run --xdp eth1 --ports tcp:80,tcp:443 -- nginx
      Two ports of this machine's address on eth1; the rest stays the kernel's
  towpath run --netem 'delay 50ms 5ms loss 1% rate 20mbit' -- curl http://example.org/
      Over a slow link that loses packets
  towpath run --pcap out.pcapng --stats -- curl http://example.org/
      Look at the packets in Wireshark, and at the counters
  towpath run --pcap - -- curl -s http://example.org/ | tcpdump -nr -
      Look at the packets as they come";

const SS_ABOUT: &str = "\
Show the sockets of running stacks, with the options, columns and filters of ss(8).

Without -l, -a or a state in the filter, sockets without a peer and connections in TIME-WAIT or \
SYN-RECV are left out; without -t and -u, all kinds are shown. Each `towpath run` of this user is \
asked, or the one with the given process id. A run that does not answer is named on standard \
error. Root sees runs of other users as well, marked with the user (user=NAME), since their \
answers are that user's word; a process id means root's own runs unless --user is given.

  towpath ss -tlnp                               who listens
  towpath ss -ti dst 10.0.2.2                    connections to the host, and what TCP knows
  towpath ss 1234 state time-wait sport = :80    of one run";

const IP_USAGE: &str = "towpath ip [OPTIONS] OBJECT [COMMAND [WORDS]...]";

const IP_ABOUT: &str = "\
Show and change addresses, routes, neighbours and links of a running stack, in the words of ip(8).

A change takes effect at once, while packets flow. With --batch, all commands of a file are one \
change: every one is made, or none. Changes end with the run. Only its own user can change a run; \
root can show those of another one by --user.

  addr   show [DEV] [to PREFIX] [scope global|link|host] [up]
         | add ADDRESS/LENGTH dev DEV | del ADDRESS[/LENGTH] dev DEV
  route  show [[root|match] PREFIX] [dev DEV] [via ADDRESS] [type TYPE] [proto boot|kernel|ra]
         | add|append|replace|change|del [TYPE] PREFIX|default [via ADDRESS] [dev DEV]
           [metric NUMBER] [mtu BYTES] [nexthop via ADDRESS [dev DEV] [weight NUMBER]]...
         TYPE is unicast, blackhole, unreachable or prohibit
  neigh  show [dev DEV] [ADDRESS] | add|replace|change ADDRESS lladdr MAC dev DEV | del ADDRESS \
  dev DEV
  link   show [DEV] [up] | set DEV [up|down] [mtu BYTES]
         | add NAME type DEVICE[,ADDRESS/LENGTH] | delete DEV; of a router, by the words of --port
  monitor  [all|link|addr|route|neigh]... [dev DEV] [label]: changes as they happen, until Ctrl-C \
or the end of the run

As with ip(8), show is what is meant without a command, words may be shortened, -6 chooses the \
family, and an interface that is set down loses its routes and neighbours.";

const IP_AFTER: &str = "\
Exit status, as of ip(8):
  0  shown, or changed
  1  the words are wrong, or the run is not found or not named
  2  the stack refused: nothing is changed; or the run does not answer

Examples:
  towpath ip addr
      Of the only run of this user
  towpath ip --name web addr add 10.77.0.9/24 dev towpath0
      Of the run that `towpath run --name web` began
  towpath ip --run 1234 route replace default via 10.77.0.1
  towpath ip -j neigh | jq
  towpath ip --batch changes.txt
      All lines as one change
  towpath ip -j monitor route neigh
      Changes of routes and neighbours, each a line of JSON";

const STATS_ABOUT: &str = "\
Show the counters of a running stack: of its layers, as `towpath run --stats` prints them at the \
end, and of its interfaces, and of devices and the rootless gateway.

  towpath stats                   what is not zero
  towpath stats -j | jq .drops    every counter
  towpath stats -w 1              what each second brings";

const LOAD_ABOUT: &str = "\
Measure a server under load: TCP, UDP, HTTP/1.1, redis.

Each user has a connection, sends a message, waits for the answer, and sends the next one: a \
closed loop, which a slow server slows down. With --rate, requests are due by a schedule that the \
server cannot delay: an open loop, where the time of an answer counts from when its request was due.

The server must echo the message unless --answer says otherwise. Ctrl-C ends the run with the \
figures so far, a second Ctrl-C ends it at once.";

const LOAD_AFTER: &str = "\
Exit status:
  0    the figures are there, whatever they say
  2    an option is wrong, or the host has no address
  3    a bound of --assert is not kept
  4    no user had a connection, or no request had an answer; of --compare, in a round
  5    --search ended because the tester fell behind: the server may do more
  125  towpath itself failed: too few file descriptors, a file that it cannot write

Examples:
  towpath load --host 127.0.0.1:7 --users 100 --interval 10ms
      100 users, 10 ms between an answer and the next request
  towpath load --host 127.0.0.1:7 --users 100 --rate 5000 -o html=report.html
      5000 requests per second, answered or not; a page with plots beside the text
  towpath load http://127.0.0.1:8080/index.html --users 50
      HTTP/1.1 requests on 50 connections
  towpath load http://127.0.0.1:8080/api -H 'Accept: text/html' --body @order.json -n 1000
      1000 POST requests with a header and the bytes of a file
  towpath load --host 127.0.0.1:7 --users 10000 --idle
      10,000 connections with a request per second each
  towpath load --host 127.0.0.1:6379 --redis 'GET key:__rand_int__' --depth 16 -o json > run.json
      Random keys, 16 requests under way; everything in one document
  towpath load --host 127.0.0.1:7 --rate 1000 --assert 'p99<5ms'
      A test: fails with status 3 if p99 is longer
  towpath load --compare 127.0.0.1:7 127.0.0.1:8 --users 50 --duration 5s
      Which of two servers is faster, and is it more than noise?
  towpath load --host 127.0.0.1:7 --users 50 --search p99=5ms --duration 5s
      The highest rate that keeps p99 at 5 ms
  towpath load --host 127.0.0.1:7 --on rootless
      The same users on Towpath's stack";

const SIM_ABOUT: &str = "\
Run a scenario in a simulated network, with the stack of `towpath run` in every host.

SCENARIO is a TOML file with hosts, switches, links and flows. Time is virtual: a run takes as \
long as it takes to compute, and the same seed gives the same results, byte for byte. The tables \
show flows and links. -o writes a page with charts, JSON or CSV, and --pcap what passed each link. \
docs/sim has scenarios that teach, and all keys.

Four examples need no file: they are a host, its queue and its device, with and without byte queue \
limits. docs/sim/examples.md shows them.

  towpath sim bufferbloat.toml                       tables
  towpath sim bufferbloat.toml -o r.html             and a page with charts
  towpath sim bufferbloat.toml --runs 10 -o r.json   means of ten seeds
  towpath sim bufferbloat.toml --pcap captures       packets of each link, for Wireshark
  towpath sim tc                                     an example, with its options in tc --help";

const MAN_ABOUT: &str = "\
Print a manual page to standard output: of towpath, or of one of its commands.

  towpath man ss | man -l -
  towpath man run > ~/.local/share/man/man1/towpath-run.1";

const COMPLETIONS_ABOUT: &str = "\
Print a completion script for a shell to standard output. With it, bash, fish and zsh complete the \
names of live runs for --name and their process ids for --run, of ip, acl, nat, conntrack, port
and stats.

  bash  ~/.local/share/bash-completion/completions/towpath
  fish  ~/.config/fish/completions/towpath.fish
  zsh   _towpath in a folder of $fpath";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_that_run_no_program_do_not_mention_one() {
        use clap::CommandFactory;
        for name in ["router", "proxy"] {
            let mut all = Cli::command();
            let command = all.find_subcommand_mut(name).expect("a command");
            let help = command.render_long_help().to_string();
            assert!(help.contains("--pcap") && !help.contains("PROGRAM"), "{help}");
        }
    }

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let cli = Cli::try_parse_from(["towpath", "run"].iter().chain(words))?;
        match cli.command {
            Command::Run(args) => Ok(args),
            _ => unreachable!("run was given"),
        }
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        let args = run(&["-q", "--", "prog", "--mtu", "9", "-p", "x"]).unwrap();
        assert!(args.quiet);
        assert_eq!(args.program, ["prog", "--mtu", "9", "-p", "x"]);
        // The dashes are optional after the name of the program.
        assert_eq!(run(&["-q", "prog", "-v"]).unwrap().program, ["prog", "-v"]);
    }

    #[test]
    fn values_that_may_be_left_out_need_an_equals_sign() {
        let device = |args: &RunArgs| args.device.device().map(DeviceSpec::to_string);
        let args = run(&["--tap", "--stats", "prog"]).unwrap();
        assert_eq!((device(&args).as_deref(), args.stats), (Some("tap:"), Some(StatsFormat::Text)));
        let args = run(&["--tap=t0", "--stats=json", "prog"]).unwrap();
        let named = Some("tap:t0");
        assert_eq!((device(&args).as_deref(), args.stats), (named, Some(StatsFormat::Json)));
        let args = run(&["prog"]).unwrap();
        assert_eq!((device(&args), args.stats, args.mtu), (None, None, None));
    }

    #[test]
    fn each_device_has_an_option() {
        for driver in towpath_uplink::DEVICES {
            let option = format!("--{}={}", driver.name, driver.example);
            let args = run(&[&option, "--address", "10.0.0.2/24", "prog"]).expect(&option);
            let device = args.device.device().expect(&option).to_string();
            assert_eq!(device, format!("{}:{}", driver.name, driver.example));
        }
    }

    #[test]
    fn a_stack_in_the_programs_process_is_not_divided() {
        let count = |words: &[&str]| run(words).expect("it is parsed").shards();
        assert_eq!(count(&["--shards", "4", "x"]).expect("beside it"), 4);
        for words in [&["--inline", "x"][..], &["--inline", "--shards=auto", "x"]] {
            assert_eq!(count(words).expect("one"), 1, "{words:?}");
        }
        assert_eq!(count(&["--inline", "--shards", "1", "x"]).expect("one"), 1);
        let error = count(&["--inline", "--shards", "2", "x"]).expect_err("one process");
        assert!(error.to_string().contains("--shards 2: with --inline"), "{error}");
    }

    #[test]
    fn options_that_need_the_stack_in_towpath_say_why() {
        let checked = |words: &[&str]| run(words).expect("it is parsed").check_inline();
        for words in
            [&["--pcap", "f"][..], &["--xdp", "e0"], &["--dpdk", "e", "--address", "10.0.0.2/24"]]
        {
            checked(&[words, &["x"]].concat()).expect("beside the program");
            let error = checked(&[&["--inline"], words, &["x"]].concat()).expect_err(words[0]);
            let wanted = format!("{} with --inline: ", words[0]);
            assert!(error.to_string().starts_with(&wanted), "{error}");
        }
        checked(&["--inline", "--packet", "e0", "x"]).expect("towpath only opens it");
    }

    #[test]
    fn mistakes_name_the_word() {
        let cases = [
            (&["--pubish", "1:2", "x"][..], "--publish"),
            (&["-p", "80x:80", "x"], "80x"),
            (&["--address", "10.0.2.15/33", "x"], "10.0.2.15/33"),
            (&["--mtu", "576", "x"], "1280"),
            (&["--congestion", "cubik", "x"], "cubic"),
            (&["--tcp", "sak=off", "x"], "expected one of congestion, timestamps, sack"),
            (&["--tcp", "ecn=maybe", "x"], "expected off, on, accept, accurate"),
            (&["--shards", "3", "x"], "1, 2, 4, 8, 16 or auto"),
            (&["--busy-poll", "1001", "x"], "from 0 to 1000"),
            (&["--busy-poll", "x", "x"], "expected a number of microseconds from 0 to 1000"),
            (&["-p", "1:2", "--tap", "x"], "cannot be used with"),
            (&["--tap", "--packet", "e0", "--address", "10.0.0.2/24", "x"], "cannot be used with"),
            (&[], "PROGRAM"),
        ];
        for (words, wanted) in cases {
            let error = run(words).expect_err(&words.join(" "));
            assert_eq!(error.exit_code(), 2, "{words:?}");
            assert!(error.to_string().contains(wanted), "{words:?}: {error}");
        }
    }
}
