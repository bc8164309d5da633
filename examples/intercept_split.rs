//! A split tunnel: connections leave by an interface that depends on their server's name or
//! address. The name is that of TLS (SNI), so no resolver has to be asked:
//!
//! ```text
//! cargo run -p towpath --features intercept --example intercept_split \
//!     tw0 10.9.0.0/16 eth0 corp.example=wg0 10.9.1.0/24=wg0
//! ```
//!
//! Connections to port 443 are accepted first, because the client sends its name only then. All
//! others are accepted once the server has.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpSocket, TcpStream};
use towpath::intercept::{IncomingConnection, Intercepted, Interceptor, Refusal};

/// Maximum length of the first TLS record in bytes (RFC 8446 §5.1), with its header.
const HELLO_MAX: usize = (16 << 10) + 5;
const HELLO_TIME: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [tun, network, interface, rules @ ..] => run(tun, network, interface, rules).await,
        _ => Err("usage: intercept_split TUN NETWORK INTERFACE [NAME|NETWORK=INTERFACE]…".into()),
    }
}

pub async fn run(
    tun: &str,
    network: &str,
    interface: &str,
    rules: &[String],
) -> Result<(), Box<dyn Error>> {
    let (ip, len) = network_of(network).ok_or("the network is not valid")?;
    let builder = Interceptor::builder().tun(tun).route(ip, len);
    let Intercepted { runner, tcp, .. } = builder.build()?;
    let rules = Rules::parse(interface, rules).ok_or("a rule is not NAME=IF or NETWORK=IF")?;
    let rules = Arc::new(rules);
    tokio::spawn(async move {
        while let Ok(incoming) = tcp.accept().await {
            let rules = rules.clone();
            tokio::spawn(async move { forward(incoming, &rules).await });
        }
    });
    Ok(tokio::spawn(runner).await??)
}

async fn forward(incoming: IncomingConnection, rules: &Rules) -> io::Result<()> {
    let to = incoming.destination();
    if to.port() != 443 {
        let Ok(mut server) = connect(to, rules.by_address(to.ip())).await else {
            incoming.refuse(Refusal::Reset);
            return Ok(());
        };
        let mut client = incoming.accept().await?;
        return copy_bidirectional(&mut client, &mut server).await.map(drop);
    }
    let mut client = incoming.accept().await?;
    let hello = tokio::time::timeout(HELLO_TIME, read_hello(&mut client)).await??;
    let by_name = server_name(&hello).and_then(|name| rules.by_name(name));
    match connect(to, by_name.unwrap_or_else(|| rules.by_address(to.ip()))).await {
        Ok(mut server) => {
            server.write_all(&hello).await?;
            copy_bidirectional(&mut client, &mut server).await.map(drop)
        }
        Err(_) => {
            client.reset();
            Ok(())
        }
    }
}

async fn connect(to: SocketAddr, interface: &str) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.connect(to).await
}

/// Reads until the first TLS record is complete, or cannot be one.
async fn read_hello(client: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut hello = Vec::with_capacity(2048);
    while hello.len() < HELLO_MAX {
        let is_tls = hello.first().is_none_or(|kind| *kind == 22);
        let len = hello.get(3..5).map(|len| 5 + usize::from(u16::from_be_bytes([len[0], len[1]])));
        if !is_tls || len.is_some_and(|len| hello.len() >= len) {
            break;
        }
        if client.read_buf(&mut hello).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(hello)
}

/// Returns the server name of a ClientHello (RFC 8446 §4.1.2, RFC 6066 §3).
pub fn server_name(record: &[u8]) -> Option<&str> {
    // Record header, handshake header, version and random.
    let mut at = Cursor(record.get(5 + 4 + 2 + 32..)?);
    at.take_with_len(1)?;
    at.take_with_len(2)?;
    at.take_with_len(1)?;
    let mut extensions = Cursor(at.take_with_len(2)?);
    loop {
        let kind = extensions.take(2)?;
        let content = extensions.take_with_len(2)?;
        if kind == [0, 0] {
            let mut names = Cursor(Cursor(content).take_with_len(2)?);
            let is_host_name = names.take(1)? == [0];
            let name = names.take_with_len(2)?;
            return std::str::from_utf8(name).ok().filter(|_| is_host_name);
        }
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(len)?;
        self.0 = left;
        Some(taken)
    }

    /// Takes a field that follows its length of `width` bytes.
    fn take_with_len(&mut self, width: usize) -> Option<&'a [u8]> {
        let len = self.take(width)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        self.take(len)
    }
}

struct Rules {
    default: String,
    /// Names with their subdomains, and interfaces.
    names: Vec<(String, String)>,
    networks: Vec<(IpAddr, u8, String)>,
}

impl Rules {
    fn parse(default: &str, rules: &[String]) -> Option<Self> {
        let mut out = Self { default: default.into(), names: Vec::new(), networks: Vec::new() };
        for rule in rules {
            let (what, interface) = rule.split_once('=')?;
            match network_of(what) {
                Some((ip, len)) => out.networks.push((ip, len, interface.into())),
                None => out.names.push((what.to_ascii_lowercase(), interface.into())),
            }
        }
        Some(out)
    }

    fn by_name(&self, name: &str) -> Option<&str> {
        let name = name.to_ascii_lowercase();
        let matches = |rule: &str| {
            name.strip_suffix(rule).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let rule = self.names.iter().find(|(rule, _)| matches(rule));
        rule.map(|(_, interface)| interface.as_str())
    }

    fn by_address(&self, ip: IpAddr) -> &str {
        let matches = |network: IpAddr, len: u8| match (network, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).leading_zeros() >= len.into()
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).leading_zeros() >= len.into()
            }
            _ => false,
        };
        let rule = self.networks.iter().find(|(network, len, _)| matches(*network, *len));
        rule.map_or(&self.default, |(_, _, interface)| interface)
    }
}

fn network_of(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = text.split_once('/')?;
    Some((ip.parse().ok()?, len.parse().ok()?))
}
