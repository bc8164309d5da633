//! Fuzzes configuration files of routers: any text, and files of valid and invalid parts. A file
//! that is accepted is written, and read as the same configuration.

use towpath_config::{ConfigDelta, ConfigFile, FileOption, FileOptionKind};

use crate::input::Input;

/// Maximum parts of a file.
const PARTS_MAX: u8 = 40;

/// Runs one case. Panics if an error has no place in the text, or if a written file is read as
/// another configuration.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let text = match input.u8() % 4 {
        0 => String::from_utf8_lossy(input.rest()).into_owned(),
        _ => text_of_parts(&mut input),
    };
    let options = options();
    let file = match ConfigFile::parse(&text, &options) {
        Ok(file) => file,
        Err(error) => {
            assert!((1..=text.matches('\n').count() + 1).contains(&error.line), "{text:?}");
            assert!(error.column >= 1 && !error.message.is_empty(), "{text:?}");
            return;
        }
    };
    if let Err(conflict) = file.config.check() {
        assert!(!file.place(&conflict).message.is_empty(), "{text:?}");
    }
    let written = file.config.to_toml(|name| name == "tags");
    let again = ConfigFile::parse(&written, &options);
    let again = again.unwrap_or_else(|error| panic!("{error}\n{written}\n{text}")).config;
    assert_eq!(again, file.config, "{written}\n{text}");
    assert!(ConfigDelta::between(&again, &file.config).is_empty());
}

fn options() -> Vec<FileOption> {
    let option = |(name, kind): (&str, FileOptionKind)| FileOption {
        name: name.to_owned(),
        kind,
        check: Box::new(|word| match word.len() {
            1..100 => Ok(()),
            len => Err(format!("{len} bytes; expected 1 to 99")),
        }),
    };
    let kinds = [
        ("shards", FileOptionKind::Value),
        ("quiet", FileOptionKind::Flag),
        ("tags", FileOptionKind::List),
    ];
    kinds.map(option).into()
}

/// Writes parts of a file in any order. Most are whole lines, so that many files are valid.
fn text_of_parts(input: &mut Input<'_>) -> String {
    let mut text = String::new();
    for _ in 0..1 + input.u8() % PARTS_MAX {
        if input.one_in(64) {
            let keep = usize::from(input.u16()) % (text.len() + 1);
            text.truncate(text.floor_char_boundary(keep));
        }
        text.push_str(input.pick(PARTS));
        if input.is_empty() {
            break;
        }
    }
    text
}

const PARTS: &[&str] = &[
    "shards = 2\n",
    "shards = 'auto'\n",
    "quiet = true\n",
    "tags = ['a', 2, \"\\u00e9\"]\n",
    "tags = []\n",
    "routes = ['10.9.0.0/16@10.1.0.9,10.1.0.8*3 metric 5 mtu 1400', 'blackhole 10.0.0.0/8']\n",
    "routes = ['::/0@fe80::1%wan', 'default@10.1.0.9', '10.9.0.0/16@%lan']\n",
    "rules = ['acl add id 10 in wan action drop', 'acl default action reject', '# comment']\n",
    "rules = ['acl add id 5 dst fd00::/8 action accept log rate 5/s', '']\n",
    "acl = 'file'\n",
    "nat = ['masquerade out wan', 'id 5 snat out lan to 192.0.2.5 ports 1000-2000']\n",
    "forwards = ['in wan proto tcp dport 8080 to 10.1.0.5:80']\n",
    "[[port]]\nname = 'lan'\ndevice = 'packet:eth1'\n",
    "[[port]]\nname = 'wan'\ndevice = 'tap:tw0'\n",
    "[[port]]\nname = 'br'\ndevice = 'bridge:a+b,ageing=60,addresses=7'\n",
    "[[port]]\nname = 'v'\ndevice = 'vlan:lan.10'\n",
    "addresses = ['10.1.0.1/24', 'fd00:1::1/64']\n",
    "addresses = []\n",
    "mtu = 1400\n",
    "up = false\n",
    "up = true\n",
    "neighbors = ['10.1.0.7@02:00:00:00:00:07']\n",
    "[[dhcp]]\nport = 'wan'\n",
    "hostname = 'home'\n",
    "lease = 'file'\n",
    "[[dhcp-server]]\nport = 'lan'\npool = '10.1.0.100-10.1.0.199'\n",
    "lease = 600\n",
    "dns = ['9.9.9.9']\n",
    "domain = 'home.arpa'\n",
    "reserve = ['02:00:00:00:00:05@10.1.0.5']\n",
    "leases = \"a\\\"b\"\n",
    "[[ra]]\nport = 'lan'\n",
    "managed = true\n",
    "interval = 30\n",
    "[dns]\nlisten = ['lan']\n",
    "upstreams = ['9.9.9.9', '[fd00::1]:54']\n",
    "ttl-min = 5\n",
    "hosts = ['nas@10.1.0.5']\n",
    "# comment\n",
    "[port]\n",
    "port = 1\n",
    "name = 1979-05-27\n",
    "é = 1.5\n",
    "= [[{",
];
