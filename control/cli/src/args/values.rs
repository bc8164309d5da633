//! Parsers for option values: ports, addresses, sizes, times. Each error message repeats the
//! invalid value, and describes the expected one.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use towpath_model::{Word, is_name, user_id};
use towpath_pcap::SNAPLEN_DEFAULT;
use towpath_stack::limits::SHARDS_MAX;
use towpath_uplink::{Dns, MTUS, PortRange, Transport};

/// Allowed values of `--pcap-snaplen` in bytes. 64 bytes hold the headers of Ethernet, IPv4 and TCP
/// without options.
const SNAPLENS: RangeInclusive<u32> = 64..=SNAPLEN_DEFAULT;

/// Parses the value of `--mtu`, in bytes.
pub fn parse_mtu(text: &str) -> Result<u32, String> {
    parse_bytes(text, MTUS, 1500)
}

/// Parses the value of `--pcap-snaplen`, in bytes.
pub fn parse_snaplen(text: &str) -> Result<u32, String> {
    parse_bytes(text, SNAPLENS, 128)
}

fn parse_bytes(text: &str, range: RangeInclusive<u32>, example: u32) -> Result<u32, String> {
    let of_example = |why| format!("{why}, for example {example}");
    parse_number(text, range, "bytes").map_err(of_example)
}

/// Maximum value of `--busy-poll` in microseconds: a thousand times the duration of a request over
/// loopback.
const BUSY_POLL_US_MAX: u32 = 1000;

/// Parses the value of `--busy-poll`, in microseconds.
pub fn parse_microseconds(text: &str) -> Result<u32, String> {
    parse_number(text, 0..=BUSY_POLL_US_MAX, "microseconds")
}

/// Parses the value of `--run`: any number above 0, although Linux assigns process ids only up to
/// 2^22.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| "expected a process id, as `towpath ss -p` shows them".to_owned())
}

/// Parses a number in `range`. `what` is the unit in the error message.
///
/// # Errors
/// Returns a message with the expected range, because std's message is only "invalid digit found in
/// string".
pub fn parse_number(text: &str, range: RangeInclusive<u32>, what: &str) -> Result<u32, String> {
    let (least, most) = (*range.start(), *range.end());
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a number of {what} from {least} to {most}"))
}

/// `--stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatsFormat {
    /// A counter per line
    Text,
    /// A JSON object
    Json,
}

/// Parses a range of ports in a value of `--ports`.
pub fn parse_port_range(text: &str) -> Result<PortRange, String> {
    let wanted =
        || format!("\"{text}\": expected tcp:PORT or udp:PORT, or a range as tcp:8000-8010");
    let (transport, ports) = text.split_once(':').ok_or_else(wanted)?;
    let transport = match transport {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return Err(wanted()),
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0).ok_or_else(wanted);
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(wanted());
    }
    Ok(PortRange { transport, first, last })
}

/// Parsed value of `--shards`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// Fixed number of shards, a power of two.
    Count(usize),
    /// As many shards as this machine can use. Threads are added on demand.
    Auto,
}

impl Shards {
    /// Returns the number of shards to create.
    pub fn count(self) -> usize {
        match self {
            Self::Count(count) => count,
            // Use the number of processors available to this process, or 1 if the kernel does not
            // report it.
            Self::Auto => Self::for_processors(
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ),
        }
    }

    /// Returns the number of shards for `--shards auto`: a quarter of the processors, rounded down
    /// to a power of two. The program needs the remaining processors, because it does more work for
    /// its packets than the stack.
    fn for_processors(processors: usize) -> usize {
        match processors / 4 {
            0 => 1,
            quarter => (1 << quarter.ilog2()).min(SHARDS_MAX),
        }
    }
}

/// Parses the value of `--shards`.
pub fn parse_shards(text: &str) -> Result<Shards, String> {
    if text == "auto" {
        return Ok(Shards::Auto);
    }
    let count = text.parse().ok();
    let count = count.filter(|count: &usize| count.is_power_of_two() && *count <= SHARDS_MAX);
    count.map(Shards::Count).ok_or_else(|| format!("expected 1, 2, 4, 8, {SHARDS_MAX} or auto"))
}

/// Maximum value of `--stop-timeout` in seconds: one day, whose milliseconds fit 32 bits.
const STOP_TIMEOUT_MAX: u64 = 86_400;

/// Parses a duration in whole seconds, at most one day.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds <= STOP_TIMEOUT_MAX);
    let wrong = || format!("{text:?} is not a number of seconds from 0 to {STOP_TIMEOUT_MAX}");
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

pub fn parse_size(text: &str) -> Result<u64, String> {
    let unit = |unit: char| match unit.to_ascii_uppercase() {
        'K' => Some(1 << 10),
        'M' => Some(1 << 20),
        'G' => Some(1u64 << 30),
        _ => None,
    };
    let (number, unit) = match text.chars().next_back().and_then(unit) {
        Some(unit) => (&text[..text.len() - 1], unit),
        None => (text, 1),
    };
    let size = number.parse().ok().and_then(|number: u64| number.checked_mul(unit));
    size.ok_or_else(|| {
        format!("{text:?} is not a size: expected a number of bytes, or one as 500K, 100M, 2G")
    })
}

/// Parses the value of `--dns`: the IP address of a nameserver, or "none".
pub fn parse_dns(text: &str) -> Result<Dns, String> {
    if text == "none" {
        return Ok(Dns::None);
    }
    let ip = parse_nameserver(text);
    ip.map(Dns::At).map_err(|error| format!("{error}; \"none\" is for no nameserver"))
}

/// Parses the IP address of a nameserver.
pub fn parse_nameserver(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr =
        text.parse().map_err(|_| format!("{text:?} is not an IP address, for example 9.9.9.9"))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(format!("{ip} cannot be the address of a nameserver"));
    }
    Ok(ip)
}

/// Parses the name of a run.
pub fn parse_name(text: &str) -> Result<Word, String> {
    let name = Word::try_from(text).ok().filter(|_| is_name(text));
    name.ok_or_else(|| "expected 1 to 32 letters, digits and underscores".to_owned())
}

/// Parses the value of `--user`: the name or the number of a user.
pub fn parse_user(text: &str) -> Result<u32, String> {
    user_id(text).ok_or_else(|| "no user of this system has this name or number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns() {
        assert_eq!(parse_dns("none"), Ok(Dns::None));
        assert_eq!(parse_dns("9.9.9.9"), Ok(Dns::At([9, 9, 9, 9].into())));
        for bad in ["", "localhost", "0.0.0.0", "9.9.9.9:53"] {
            assert!(parse_dns(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_of_bytes() {
        assert_eq!(parse_mtu("1280").and(parse_mtu("65535")), Ok(65535));
        assert_eq!(parse_snaplen("64").and(parse_snaplen("262144")), Ok(262_144));
        for bad in ["", "1279", "65536", "-1", "1.5", "1500B", "99999999999999999999"] {
            let error = parse_mtu(bad).expect_err(bad);
            assert_eq!(error, "expected a number of bytes from 1280 to 65535, for example 1500");
        }
        assert!(parse_snaplen("63").expect_err("63").contains("from 64 to 262144"));
    }

    #[test]
    fn numbers_of_shards() {
        for count in [1, 2, 4, 8, 16] {
            assert_eq!(parse_shards(&count.to_string()).map(Shards::count), Ok(count));
        }
        for bad in ["", "0", "3", "32", "-1", "two", "Auto"] {
            assert_eq!(parse_shards(bad).expect_err(bad), "expected 1, 2, 4, 8, 16 or auto");
        }
        let auto =
            [(1, 1), (4, 1), (7, 1), (8, 2), (15, 2), (16, 4), (64, 16), (96, 16), (256, 16)];
        for (processors, count) in auto {
            assert_eq!(Shards::for_processors(processors), count, "{processors}");
        }
        assert!(parse_shards("auto").is_ok_and(|auto| auto.count().is_power_of_two()));
    }

    #[test]
    fn sizes_and_times() {
        let good = [("0", 0), ("5000", 5000), ("1K", 1024), ("2m", 2 << 20), ("3G", 3 << 30)];
        for (text, size) in good {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for bad in ["", "G", "-1", "1T", "17179869184G", "1 M", "1\u{e9}"] {
            assert!(parse_size(bad).expect_err(bad).contains("is not a size"), "{bad}");
        }
        assert_eq!(parse_seconds("0"), Ok(Duration::ZERO));
        assert_eq!(parse_seconds("10"), Ok(Duration::from_secs(10)));
        for bad in ["", "-1", "1.5", "86401", "10s"] {
            assert!(parse_seconds(bad).expect_err(bad).contains("0 to 86400"), "{bad}");
        }
    }

    #[test]
    fn ports_have_a_protocol() {
        let range = |transport, first, last| Ok(PortRange { transport, first, last });
        assert_eq!(parse_port_range("tcp:80"), range(Transport::Tcp, 80, 80));
        assert_eq!(parse_port_range("udp:8000-8010"), range(Transport::Udp, 8000, 8010));
        for text in ["80", "tcp", "tcp:", "sctp:80", "tcp:0", "tcp:65536", "tcp:9-8", "tcp:1-2-3"] {
            let error = parse_port_range(text).expect_err(text);
            assert!(error.contains(text) && error.contains("tcp:PORT"), "{error}");
        }
    }
}
