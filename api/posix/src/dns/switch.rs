//! Selects the services that glibc uses to look up hosts (nsswitch.conf(5)). Services that ask
//! nameservers over the kernel's network are replaced by the service of this library.

/// Name of this library's NSS service. glibc calls its functions `_nss_towpath_…`.
const OWN: &str = "towpath";

/// Returns the services for `hosts` from the text of /etc/nsswitch.conf, with this library's
/// service instead of `dns`. None: no service in the text asks nameservers.
pub fn hosts(text: &str) -> Option<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let line = lines
        .filter_map(|line| line.strip_prefix("hosts"))
        .find_map(|rest| rest.trim_start().strip_prefix(':').map(str::trim));
    // Use glibc's default services if the file has no line for `hosts`.
    with_ours(line.filter(|line| !line.is_empty()).unwrap_or("files dns"))
}

/// Replaces the service `dns` in a line of nsswitch.conf(5) by this library's. If there is no
/// `dns`, replaces `resolve`, which asks systemd-resolved. Otherwise removes `resolve`, together
/// with its actions.
fn with_ours(line: &str) -> Option<String> {
    let spaced = line.replace('[', " [").replace(']', "] ");
    let (mut words, mut inside) = (Vec::<String>::new(), false);
    for word in spaced.split_ascii_whitespace() {
        // A word inside brackets belongs to the previous one, because actions such as
        // `[NOTFOUND=return]` may contain blanks.
        match words.last_mut().filter(|_| inside) {
            Some(last) => *last = format!("{last} {word}"),
            None => words.push(word.to_owned()),
        }
        inside = (inside || word.starts_with('[')) && !word.ends_with(']');
    }
    let has_dns = words.iter().any(|word| word == "dns");
    let (mut to, mut found, mut left_out) = (Vec::new(), false, false);
    for word in words {
        match word.as_str() {
            "resolve" if has_dns => left_out = true,
            "dns" | "resolve" => {
                (found, left_out) = (true, false);
                to.push(OWN.to_owned());
            }
            action if action.starts_with('[') && left_out => {}
            _ => {
                left_out = false;
                to.push(word);
            }
        }
    }
    found.then(|| to.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_nameservers_is_replaced() {
        let of = |line: &str| hosts(&format!("# x\npasswd: files\nhosts:  {line} # y\n"));
        let rows = [
            ("files dns", Some("files towpath")),
            (
                "files mdns4_minimal [NOTFOUND=return] dns myhostname",
                Some("files mdns4_minimal [NOTFOUND=return] towpath myhostname"),
            ),
            ("mymachines resolve [!UNAVAIL=return] files dns", Some("mymachines files towpath")),
            ("files resolve[!UNAVAIL=return TRYAGAIN=continue]dns", Some("files towpath")),
            ("files resolve", Some("files towpath")),
            ("dns [ NOTFOUND=return ] ldap", Some("towpath [ NOTFOUND=return ] ldap")),
            ("files ldap", None),
            ("", Some("files towpath")),
        ];
        for (line, wanted) in rows {
            assert_eq!(of(line).as_deref(), wanted, "{line}");
        }
        assert_eq!(hosts("").as_deref(), Some("files towpath"));
    }
}
