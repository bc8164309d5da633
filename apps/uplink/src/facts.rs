//! Formats the list of published ports that the user sees when a stack starts.

use std::net::{IpAddr, SocketAddr};

use crate::publish::{Protocol, Publish};

/// Maximum number of published ports that are listed individually. If there are more, only the
/// first and the last are shown. Ports that the host's kernel chose are always listed, because the
/// user learns them only here.
const FACTS_MAX: usize = 8;
/// Formats the list of published ports. `bound` are the addresses on the host to which they are
/// bound.
pub(crate) fn facts(publish: &[Publish], bound: &[SocketAddr], program: IpAddr) -> String {
    let lines = |free: bool| {
        let all = publish.iter().zip(bound);
        let some = all.filter(move |(publish, _)| publish.at_free_port() == free);
        some.map(|(publish, at)| published(publish, *at, program)).collect::<Vec<_>>()
    };
    let named = lines(false);
    let mut facts = match &named[..] {
        // Too many to list: show the first and the last port.
        [first, .., last] if named.len() > FACTS_MAX => {
            vec![format!("{first} to {last}, {} ports", named.len())]
        }
        _ => named,
    };
    facts.extend(lines(true));
    if facts.is_empty() { String::new() } else { facts.join(", ") + " (rootless)" }
}

/// Formats one published port, such as `http://127.0.0.1:8080 -> 10.0.2.15:80`. Adds a URL scheme
/// if the program's port has a well-known one.
fn published(publish: &Publish, at: SocketAddr, program: IpAddr) -> String {
    let scheme = match (publish.protocol, publish.port) {
        (Protocol::Tcp, 80) => "http://",
        (Protocol::Tcp, 443) => "https://",
        _ => "",
    };
    let to = SocketAddr::new(program, publish.port);
    format!("{scheme}{at}{} -> {to}", publish.protocol.suffix())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_that_the_host_chose_is_told() {
        let parsed =
            ["8000-8008:80-88", "90-98"].map(|word| word.parse::<crate::publish::PublishedRange>());
        let publish = parsed.map(|ports| ports.unwrap().0).concat();
        let chosen = (0..9).map(|n| 40_000 + n * n);
        let bound =
            (8000..=8008).chain(chosen).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let bound = bound.collect::<Vec<_>>();
        let said = super::facts(&publish, &bound, "10.0.2.15".parse().unwrap());
        let ends =
            "http://127.0.0.1:8000 -> 10.0.2.15:80 to 127.0.0.1:8008 -> 10.0.2.15:88, 9 ports, 127";
        assert!(said.starts_with(ends), "{said}");
        for (at, port) in bound.iter().zip(80u16..).skip(9).map(|(at, n)| (at, n + 1)) {
            assert!(said.contains(&format!("{at} -> 10.0.2.15:{port}")), "{said}");
        }
        assert!(said.ends_with(" -> 10.0.2.15:98 (rootless)"), "{said}");
    }

    #[test]
    fn facts() {
        let text = |word: &str| {
            let publish = word.parse::<crate::publish::PublishedRange>().unwrap().0[0];
            published(&publish, publish.host, "10.0.2.15".parse().unwrap())
        };
        assert_eq!(text("8080:80"), "http://127.0.0.1:8080 -> 10.0.2.15:80");
        assert_eq!(text("[::1]:53:53/udp"), "[::1]:53/udp -> 10.0.2.15:53");
        assert_eq!(text("2222:22"), "127.0.0.1:2222 -> 10.0.2.15:22");
    }
}
