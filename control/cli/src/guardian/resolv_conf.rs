//! Content of /etc/resolv.conf in a new mount namespace.

use std::fmt::Write;
use std::net::IpAddr;

pub const PATH: &str = "/etc/resolv.conf";

/// Returns the remark for the user that the host has no /etc/resolv.conf, which could be replaced.
pub fn missing(nameservers: &[IpAddr]) -> String {
    let nameservers = nameservers.iter().map(IpAddr::to_string).collect::<Vec<_>>();
    format!(
        "{PATH} is missing: programs do not know that {} resolve names",
        nameservers.join(" and ")
    )
}

/// Returns the content of the new file: the nameservers, and the search and option lines of the
/// host's file.
pub fn contents(nameservers: &[IpAddr], before: &str) -> String {
    let mut text = String::new();
    for ip in nameservers {
        // Ignore errors: writing to a String cannot fail.
        let _ = writeln!(text, "nameserver {ip}");
    }
    let kept = before.lines().filter(|line| {
        let word = line.split_whitespace().next().unwrap_or_default();
        matches!(word, "search" | "domain" | "options")
    });
    for line in kept {
        text += line;
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_nameservers_stays() {
        let before =
            "# by hand\nnameserver 127.0.0.53\noptions edns0\n search a.example b\nnameserver";
        let ips = ["10.0.2.3", "fd00:2::3"].map(|ip| ip.parse().expect("an address"));
        let wanted =
            "nameserver 10.0.2.3\nnameserver fd00:2::3\noptions edns0\n search a.example b\n";
        assert_eq!(contents(&ips, before), wanted);
    }
}
