//! Configuration files: errors with their places, files that are written and read again, and
//! differences.

mod errors;
mod properties;

use towpath_config::{ConfigError, ConfigFile, FileOption, FileOptionKind};

/// A home router with every key.
const HOME: &str = "\
shards = 1
quiet = true
tags = ['a', 2]
routes = ['10.9.0.0/16@10.1.0.9,10.1.0.8*3 metric 5 mtu 1400', 'blackhole 10.0.0.0/8']
rules = ['acl add id 10 in wan action drop', 'acl default hook input action drop']
nat = ['masquerade out wan']
forwards = ['in wan proto tcp dport 8080 to 10.1.0.5:80']

[[port]]
name = 'lan'
device = 'packet:eth1'
addresses = ['10.1.0.1/24', 'fd00:1::1/64']
mtu = 1400
neighbors = ['10.1.0.7@02:00:00:00:00:07']

[[port]]
name = 'wan'
device = 'packet:eth0'

[[port]]
name = 'old'
device = 'vlan:lan.10'
addresses = ['10.3.0.1/24']
up = false

[[dhcp]]
port = 'wan'
hostname = 'home'

[[dhcp-server]]
port = 'lan'
pool = '10.1.0.100-10.1.0.199'
lease = 600
dns = ['9.9.9.9', '1.1.1.1']
reserve = ['02:00:00:00:00:05@10.1.0.5']

[[ra]]
port = 'lan'
interval = 30
lifetime = 90
valid = 600
preferred = 300
mtu = 1300
managed = true
other = true
dns = ['fd00::53']
search = ['home.arpa']

[dns]
listen = ['lan', 'old']
upstreams = ['9.9.9.9', '[2620:fe::fe]:5353']
port = 5353
entries = 500
memory = 100000
ttl-min = 5
ttl-max = 600
pending = 20
domain = 'lan'
hosts = ['nas@10.1.0.5']
";

/// Options of a command line that a file may have.
fn options() -> Vec<FileOption> {
    let option = |name: &str, kind| FileOption {
        name: name.to_owned(),
        kind,
        check: Box::new(|word| match word {
            "wrong" => Err("expected another word".to_owned()),
            _ => Ok(()),
        }),
    };
    vec![
        option("shards", FileOptionKind::Value),
        option("quiet", FileOptionKind::Flag),
        option("tags", FileOptionKind::List),
    ]
}

fn is_list(name: &str) -> bool {
    name == "tags"
}

/// Parses and checks a file.
fn read(text: &str) -> Result<ConfigFile, ConfigError> {
    let file = ConfigFile::parse(text, &options())?;
    file.config.check().map_err(|conflict| file.place(&conflict))?;
    Ok(file)
}
