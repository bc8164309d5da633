//! Parser of hosts(5), whose lines consist of an address and its names.

use std::net::IpAddr;

/// Returns the addresses of `name` in `lines`: IPv4 addresses before IPv6 addresses, and otherwise
/// in the order of the lines.
pub fn addresses(lines: &str, name: &[u8]) -> Vec<IpAddr> {
    // DNS names are compared without regard to case (RFC 4343).
    let is_name = |word: &str| word.as_bytes().eq_ignore_ascii_case(name);
    let entry = |line| {
        let mut words = words(line);
        let ip = words.next()?.parse().ok()?;
        words.any(is_name).then_some(ip)
    };
    let mut all: Vec<IpAddr> = lines.lines().filter_map(entry).collect();
    all.sort_by_key(|ip| !ip.is_ipv4());
    all
}

/// Returns the first name in `lines` for an address.
pub fn name(lines: &str, ip: IpAddr) -> Option<String> {
    lines.lines().find_map(|line| {
        let mut words = words(line);
        (words.next()?.parse() == Ok(ip)).then(|| words.next().map(str::to_owned))?
    })
}

/// Returns the words of a line; a comment after `#` is skipped.
fn words(line: &str) -> std::str::SplitWhitespace<'_> {
    line.split('#').next().unwrap_or_default().split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_addresses_and_names_in_lines() {
        let lines =
            "# 192.0.2.6 db\n2001:db8::7\tdb\n192.0.2.7\tdb db.example # old\n192.0.2.8\tDB\n";
        let ips = |all: &[&str]| -> Vec<IpAddr> {
            all.iter().map(|ip| ip.parse().expect("an address")).collect()
        };
        assert_eq!(addresses(lines, b"Db"), ips(&["192.0.2.7", "192.0.2.8", "2001:db8::7"]));
        assert_eq!(addresses(lines, b"db.example"), ips(&["192.0.2.7"]));
        assert!(addresses(lines, b"192.0.2.7").is_empty() && addresses(lines, b"old").is_empty());
        assert_eq!(name(lines, ips(&["192.0.2.8"])[0]).as_deref(), Some("DB"));
        assert_eq!(name(lines, ips(&["192.0.2.9"])[0]), None);
    }
}
