//! Settings of a run: options of the script, and the stack's settings for names of sysctl(8).

use std::net::IpAddr;
use std::time::Duration;

use towpath_stack::StackConfig;
use towpath_tcp::{CongestionKind, EcnMode, FastOpenKeys};

use crate::host::SocketSizes;
use crate::syntax::{OptionLine, SyntaxError};

/// Maximum initial capacity of a socket's receive buffer in bytes.
const RECV_FIRST: u32 = 64 << 10;

/// IP version of the packets, and address family of the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IpVersion {
    /// IPv4 sockets with IPv4 packets.
    #[default]
    V4,
    /// IPv6 sockets with IPv4 packets (RFC 4291 §2.5.5.2).
    V4Mapped,
    /// IPv6 sockets with IPv6 packets.
    V6,
}

impl IpVersion {
    /// Valid values of `--ip_version`.
    pub const NAMES: &[&str] = &["ipv4", "ipv4-mapped-ipv6", "ipv6"];

    /// Returns the IP version with this name. `None` if the name is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ipv4" => Some(Self::V4),
            "ipv4-mapped-ipv6" => Some(Self::V4Mapped),
            "ipv6" => Some(Self::V6),
            _ => None,
        }
    }
}

/// Settings of a script's run.
#[derive(Debug, Clone)]
pub struct Knobs {
    pub version: IpVersion,
    pub mtu: u16,
    pub local_ip: Option<IpAddr>,
    pub remote_ip: Option<IpAddr>,
    pub tolerance_us: i64,
    /// Microseconds per tick of the expected timestamps. 0 disables the comparison of timestamps.
    pub tick_us: u32,
    pub strict_segments: bool,
    /// Initial sequence number of the stack. `None` if the stack chooses it.
    pub local_isn: Option<u32>,
    /// Initial sequence number of the peer.
    pub remote_isn: u32,
    pub sizes: SocketSizes,
    /// Bits of Linux's `tcp_fastopen` sysctl.
    pub fast_open: u32,
    pub not_sent_lowat: u32,
    pub stack: StackConfig,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            version: IpVersion::V4,
            mtu: 1500,
            local_ip: None,
            remote_ip: None,
            tolerance_us: 4_000,
            tick_us: 0,
            strict_segments: false,
            local_isn: None,
            remote_isn: 0,
            sizes: SocketSizes {
                recv: RECV_FIRST,
                recv_max: 6 << 20,
                send: 87_380,
                send_max: 4 << 20,
            },
            fast_open: 1,
            not_sent_lowat: u32::MAX,
            stack: StackConfig::default(),
        }
    }
}

impl Knobs {
    /// Applies an option line of the script.
    ///
    /// # Errors
    /// Returns an error if the option is unknown, or if its value is invalid.
    pub fn set_option(&mut self, option: &OptionLine) -> Result<(), SyntaxError> {
        let (name, value) = (option.name.as_str(), option.value.as_str());
        let error = |message| SyntaxError { line: option.line, column: 1, message };
        let invalid = || error(format!("'{value}' is not a valid value of --{name}"));
        let number = || value.parse::<u32>().map_err(|_| invalid());
        match name {
            "ip_version" => self.version = IpVersion::from_name(value).ok_or_else(invalid)?,
            "local_ip" => self.local_ip = Some(value.parse().map_err(|_| invalid())?),
            "remote_ip" => self.remote_ip = Some(value.parse().map_err(|_| invalid())?),
            "mtu" => self.mtu = value.parse().map_err(|_| invalid())?,
            // Ignore options that configure packetdrill's own network path, which does not exist
            // here.
            "mss" | "tcp_ts_ecr_scaled" => {}
            "tolerance_usecs" => self.tolerance_us = number()?.into(),
            "tcp_ts_tick_usecs" => self.tick_us = number()?,
            "strict_segments" => self.strict_segments = true,
            "local_isn" => self.local_isn = Some(number()?),
            "remote_isn" => self.remote_isn = number()?,
            _ => return Err(error(format!("unknown option --{name}"))),
        }
        Ok(())
    }

    /// Applies a command line that changes settings: `sysctl`, `defaults.sh`, or `set_sysctls.py`.
    ///
    /// # Errors
    /// Returns an error message about the first word that is not supported.
    pub fn run_command(&mut self, command: &str) -> Result<(), String> {
        let joined = command.replace("\\\n", " ");
        for line in joined.lines() {
            let line = line.split(" #").next().unwrap_or("").trim();
            for part in line.split("&&").flat_map(|part| part.split(';')) {
                self.run_part(part.trim())?;
            }
        }
        Ok(())
    }

    fn run_part(&mut self, part: &str) -> Result<(), String> {
        let mut words = CommandWords(part);
        let Some(program) = words.next() else { return Ok(()) };
        let name = program.rsplit('/').next().unwrap_or("");
        match name {
            "defaults.sh" => {
                self.production();
                // A script may continue with a sysctl command on the same line.
                self.run_part(words.0.trim())
            }
            "sysctl" | "set_sysctls.py" => {
                for word in words {
                    if !word.starts_with('-') {
                        self.assign(&word)?;
                    }
                }
                Ok(())
            }
            // Ignore the command that restores the settings at the end of the script.
            _ if name.starts_with("sysctl_restore_") || name.starts_with('#') => Ok(()),
            // Ignore the command that deletes the cookies and metrics of peers, because a new stack
            // has none.
            "ip" if part.contains("tcp_metrics flush") => Ok(()),
            _ => Err(format!("command '{name}' is not supported")),
        }
    }

    fn assign(&mut self, word: &str) -> Result<(), String> {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' has no '='"))?;
        let name = name.trim_start_matches("/proc/sys/").replace('/', ".");
        self.set_sysctl(&name, value.trim_matches(['"', ' ']))
            .map_err(|reason| format!("sysctl {name}={value}: {reason}"))
    }

    /// Sets the values for which the scripts of google/packetdrill are written.
    fn production(&mut self) {
        self.set_receive(540_000, 15 << 20);
        (self.sizes.send, self.sizes.send_max) = (256 << 10, 4 << 20);
        let tcp = &mut self.stack.tcp;
        (tcp.timestamps, tcp.sack, tcp.ecn) = (true, true, EcnMode::Off);
        (tcp.syn_retries, tcp.syn_ack_retries) = (5, 5);
        tcp.congestion = CongestionKind::from_name("cubic").unwrap_or_default();
        tcp.fast_open_keys = FastOpenKeys::from_word("a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4");
        self.fast_open = 0x70403;
        self.not_sent_lowat = u32::MAX;
    }

    fn set_receive(&mut self, default: u32, max: u32) {
        // Limit the initial size to 64 KiB, with which the engine's buffers start, too. Buffers
        // grow as bytes arrive. A larger buffer would be announced by a window update after the
        // handshake.
        (self.sizes.recv, self.sizes.recv_max) = (default.min(RECV_FIRST), max.max(default));
        // Use the smallest shift for which the window covers the buffer (RFC 7323 §2.3).
        let fits = |shift: &u8| u64::from(self.sizes.recv_max) <= 65_535 << shift;
        self.stack.tcp.window_scale = (0..14).find(fits).unwrap_or(14);
    }

    fn set_sysctl(&mut self, name: &str, value: &str) -> Result<(), String> {
        let words = || value.split_whitespace().map(parse_number).collect::<Option<Vec<u32>>>();
        let numbers = words().unwrap_or_default();
        let first = numbers.first().copied();
        let number = first.ok_or("expected a number");
        let byte = number.and_then(|n| u8::try_from(n).map_err(|_| "expected at most 255"));
        let seconds = |n: u32| Duration::from_secs(n.into());
        match name.trim_start_matches("net.ipv4.").trim_start_matches("net.inet.tcp.") {
            "tcp_timestamps" => self.stack.tcp.timestamps = number? != 0,
            "tcp_sack" | "sack.enable" => self.stack.tcp.sack = number? != 0,
            "rfc1323" => self.stack.tcp.timestamps = number? != 0,
            "tcp_syn_retries" => self.stack.tcp.syn_retries = byte?,
            "tcp_synack_retries" => self.stack.tcp.syn_ack_retries = byte?,
            "tcp_retries2" => self.stack.tcp.retries = byte?,
            "tcp_orphan_retries" => self.stack.tcp.orphan_retries = byte?,
            "tcp_fin_timeout" => self.stack.tcp.fin_wait2_timeout = seconds(number?),
            "tcp_fastopen" => self.fast_open = number?,
            "tcp_fastopen_key" => {
                let keys = FastOpenKeys::from_word(value).ok_or("expected a key")?;
                self.stack.tcp.fast_open_keys = Some(keys);
            }
            "tcp_notsent_lowat" => self.not_sent_lowat = number?,
            "tcp_window_scaling" => self.stack.tcp.scaling = number? != 0,
            "tcp_ecn" => {
                self.stack.tcp.ecn = match number? {
                    0 => EcnMode::Off,
                    1 => EcnMode::On,
                    2 => EcnMode::Accept,
                    3 => EcnMode::Accurate,
                    5 => EcnMode::AcceptAccurate,
                    _ => return Err("the stack does not support this value".to_owned()),
                };
            }
            "tcp_congestion_control" => {
                let kind = CongestionKind::from_word(value);
                self.stack.tcp.congestion = kind.ok_or("unknown congestion control")?;
            }
            "tcp_rmem" => match numbers.as_slice() {
                [_, default, max] => self.set_receive(*default, *max),
                _ => return Err("expected three numbers".to_owned()),
            },
            "tcp_wmem" => match numbers.as_slice() {
                [_, default, max] => {
                    (self.sizes.send, self.sizes.send_max) = (*default, *max.max(default));
                }
                _ => return Err("expected three numbers".to_owned()),
            },
            "kern.ipc.maxsockbuf" => self.set_receive(self.sizes.recv.min(number?), number?),
            "recvspace" => self.sizes.recv = number?.min(RECV_FIRST),
            "sendspace" => self.sizes.send = number?,
            name => return is_default(name, value),
        }
        Ok(())
    }
}

/// Accepts a setting if its value is the stack's fixed behaviour.
fn is_default(name: &str, value: &str) -> Result<(), String> {
    const FIXED: &[(&str, &[&str])] = &[
        ("tcp_dsack", &["1"]),
        ("tcp_reordering", &["3"]),
        ("tcp_slow_start_after_idle", &["0", "1"]),
        ("tcp_min_tso_segs", &["1", "2", "4", "10"]),
        ("tcp_tso_win_divisor", &["3", "100"]),
        ("tcp_pacing_ss_ratio", &["200"]),
        ("tcp_pacing_ca_ratio", &["120"]),
        ("tcp_early_retrans", &["3", "4"]),
        ("tcp_recovery", &["1"]),
        ("tcp_frto", &["2"]),
        ("tcp_abort_on_overflow", &["0"]),
        ("tcp_invalid_ratelimit", &["0"]),
        ("tcp_challenge_ack_limit", &["1000"]),
        ("tcp_rfc1337", &["0", "1"]),
        ("blackhole", &["0"]),
        ("hostcache.purgenow", &["1"]),
        ("ecn.enable", &["0", "2"]),
        ("rexmit_slop", &["200"]),
        ("rexmit_initial", &["1000"]),
        ("rexmit_drop_options", &["0"]),
        ("insecure_rst", &["0"]),
        ("insecure_syn", &["0"]),
        ("drop_synfin", &["0"]),
        ("icmp_may_rst", &["1"]),
        ("path_mtu_discovery", &["1"]),
        ("newcwd", &["0"]),
        ("cc.algorithm", &["cubic"]),
    ];
    match FIXED.iter().find(|(known, _)| *known == name) {
        Some((_, values)) if values.contains(&value) => Ok(()),
        Some(_) => Err("the stack does not support this value".to_owned()),
        None => Err("the stack has no such setting".to_owned()),
    }
}

fn parse_number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Iterator over the words of a shell command. Quotes keep spaces within a word.
struct CommandWords<'a>(&'a str);

impl Iterator for CommandWords<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let text = self.0.trim_start();
        let mut quoted = false;
        let end = text.find(|letter: char| {
            quoted ^= letter == '"';
            letter.is_whitespace() && !quoted
        });
        let (word, rest) = text.split_at(end.unwrap_or(text.len()));
        self.0 = rest;
        // Skip redirections, because commands print nothing here.
        if word.contains(">/dev/null") || word == ">" || word == "&>" || word == "/dev/null" {
            return self.next();
        }
        (!word.is_empty()).then(|| word.to_owned())
    }
}
