//! Files of this machine that configure the resolver.

use std::io;

use towpath_dns::Conf;

use crate::tokio::dispatch::current_runtime;

/// Maximum length in bytes of a configuration file. A longer file is treated as missing.
const FILE_MAX: u64 = 1 << 20;

/// Contents of the resolver's configuration files, read again for each lookup. A missing file is
/// treated as empty.
pub(super) struct ResolverFiles {
    /// Settings from /etc/resolv.conf and the environment variables RES_OPTIONS and LOCALDOMAIN.
    pub conf: Conf,
    /// Text of /etc/hosts.
    pub hosts: String,
    /// Text of /etc/gai.conf.
    pub gai_conf: String,
}

impl ResolverFiles {
    /// Reads the files on a thread where blocking is allowed.
    ///
    /// # Errors
    /// `Other` outside of a runtime, where tokio's own function would panic, or if it shuts down.
    pub async fn read() -> io::Result<Self> {
        current_runtime()?.spawn_blocking(Self::read_now).await.map_err(io::Error::other)
    }

    fn read_now() -> Self {
        let hostname = text("/proc/sys/kernel/hostname");
        let env = |name: &str| std::env::var(name).ok();
        Self {
            conf: Conf::new(&text("/etc/resolv.conf"), Some(hostname.trim_end()), env),
            hosts: text("/etc/hosts"),
            gai_conf: text("/etc/gai.conf"),
        }
    }
}

fn text(path: &str) -> String {
    let is_short = |path: &str| std::fs::metadata(path).is_ok_and(|file| file.len() <= FILE_MAX);
    let bytes = if is_short(path) { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&bytes).into_owned()
}
