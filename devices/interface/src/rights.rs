//! Linux capabilities that a network device requires, and advice on how to obtain them.

use std::fmt;

/// Names of Linux capabilities (capabilities(7)) without the prefix `CAP_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(pub &'static [&'static str]);

impl Rights {
    /// Returns the end of a sentence that says how the user can give these capabilities to a
    /// process.
    pub fn advice(self) -> String {
        self.advice_as(rustix::process::geteuid().is_root())
    }

    /// Returns advice for root without the capabilities, as in a container. Returns `usual` if the
    /// user is not root.
    pub fn advice_or(self, usual: &str) -> String {
        match rustix::process::geteuid().is_root() {
            true => self.advice_as(true),
            false => usual.to_owned(),
        }
    }

    fn advice_as(self, is_root: bool) -> String {
        if is_root {
            let options: Vec<_> = self.0.iter().map(|name| format!("--cap-add {name}")).collect();
            let options = options.join(" ");
            return format!("root lacks this here, as in a container: start that with `{options}`");
        }
        let names: Vec<_> =
            self.0.iter().map(|name| format!("cap_{name}").to_lowercase()).collect();
        let names = names.join(",");
        format!(
            "run with sudo, or give towpath the right once with \
             `sudo setcap {names}+ep $(command -v towpath)`"
        )
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.len().saturating_sub(1);
        for (n, name) in self.0.iter().enumerate() {
            let joint = match n {
                0 => "",
                n if n == last => " and ",
                _ => ", ",
            };
            write!(f, "{joint}CAP_{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named_as_each_tool_takes_them() {
        let rights = Rights(&["NET_RAW", "NET_ADMIN", "BPF"]);
        assert_eq!(rights.to_string(), "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF");
        assert_eq!(Rights(&["NET_RAW"]).to_string(), "CAP_NET_RAW");
        assert!(rights.advice_as(false).contains("setcap cap_net_raw,cap_net_admin,cap_bpf+ep"));
        let container = rights.advice_as(true);
        assert!(container.contains("`--cap-add NET_RAW --cap-add NET_ADMIN --cap-add BPF`"));
        assert!(!container.contains("sudo"));
    }
}
