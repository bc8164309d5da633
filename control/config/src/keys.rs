//! Keys of a configuration file.

/// A key of a configuration file, apart from those of [`FileOption`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigKey {
    /// Table of the key; empty for the top of the file.
    pub table: &'static str,
    /// Name of the key.
    pub name: &'static str,
    /// Option of the command line with the same effect, without `--`.
    pub option: Option<&'static str>,
}

/// All keys, in the order of the documentation.
pub const KEYS: &[ConfigKey] = &[
    key("", "routes", Some("route")),
    key("", "acl", Some("acl")),
    key("", "rules", None),
    key("", "nat", Some("nat")),
    key("", "forwards", Some("forward")),
    key("", "port", Some("port")),
    key("", "nat64", Some("nat64")),
    key("", "dhcp", Some("dhcp")),
    key("", "dhcp-server", Some("dhcp-server")),
    key("", "ra", Some("ra")),
    key("", "dns", Some("dns")),
    key("port", "name", None),
    key("port", "device", None),
    key("port", "addresses", None),
    key("port", "mtu", None),
    key("port", "up", None),
    key("port", "neighbors", None),
    key("dhcp", "port", None),
    key("dhcp", "lease", None),
    key("dhcp", "hostname", None),
    key("dhcp-server", "port", None),
    key("dhcp-server", "pool", None),
    key("dhcp-server", "lease", None),
    key("dhcp-server", "dns", None),
    key("dhcp-server", "domain", None),
    key("dhcp-server", "reserve", None),
    key("dhcp-server", "leases", None),
    key("ra", "port", None),
    key("ra", "interval", None),
    key("ra", "lifetime", None),
    key("ra", "valid", None),
    key("ra", "preferred", None),
    key("ra", "mtu", None),
    key("ra", "managed", None),
    key("ra", "other", None),
    key("ra", "dns", None),
    key("ra", "search", None),
    key("dns", "listen", None),
    key("dns", "port", None),
    key("dns", "upstreams", None),
    key("dns", "entries", None),
    key("dns", "memory", None),
    key("dns", "ttl-min", None),
    key("dns", "ttl-max", None),
    key("dns", "pending", None),
    key("dns", "domain", None),
    key("dns", "hosts", None),
    key("dns", "dns64", None),
    key("nat64", "prefix", None),
    key("nat64", "pool", None),
];

const fn key(table: &'static str, name: &'static str, option: Option<&'static str>) -> ConfigKey {
    ConfigKey { table, name, option }
}

/// A command-line option that a file sets by a key of the same name. The option takes effect when
/// the router starts.
pub struct FileOption {
    /// Name of the key, and of the option without `--`.
    pub name: String,
    /// Kind of the value.
    pub kind: FileOptionKind,
    /// Checks a value, and returns a sentence for the user if it is invalid.
    pub check: OptionCheck,
}

/// Checks the value of an option, and returns a sentence for the user if it is invalid.
pub type OptionCheck = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Kind of the value of a [`FileOption`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOptionKind {
    /// `true`, as an option without a value.
    Flag,
    /// A string or a number.
    Value,
    /// An array of strings or numbers, for an option that may be repeated.
    List,
}
