//! Errors of files, each with its line and column.

use super::{HOME, read};

/// Errors of [`HOME`] after a replacement.
#[test]
fn each_error_has_its_place() {
    let cases = [
        // Keys and types.
        (
            "shards = 1",
            "shard = 1",
            "line 1, column 1: unknown key `shard`; did you mean `shards`?",
        ),
        (
            "mtu = 1400\n",
            "mut = 1400\n",
            "line 13, column 1: unknown key `mut`; did you mean `mtu`?",
        ),
        ("name = 'lan'\n", "", "line 9, column 1: missing key `name`"),
        (
            "shards = 1",
            "shards = true",
            "line 1, column 10: `shards` is of the type boolean; expected a",
        ),
        (
            "quiet = true",
            "quiet = 'yes'",
            "line 2, column 9: `quiet` is of the type string; expected true",
        ),
        (
            "routes = [",
            "routes = '' #",
            "line 4, column 10: `routes` is of the type string; expected an",
        ),
        ("'a', 2]", "'a', 2", "line "),
        (
            "shards = 1",
            "shards = 1\nshards = 2",
            "line 2, column 1: the key `shards` is given twice",
        ),
        ("shards = 1", "shards = 'wrong'", "line 1, column 10: `shards`: expected another word"),
        ("'a', 2]", "'a', 'wrong']", "line 3, column 14: `tags`: expected another word"),
        (
            "[[dhcp]]",
            "[dhcp]",
            "line 26, column 1: `dhcp` is of the type table; expected tables, as [[dhcp]]",
        ),
        // Values.
        ("@10.1.0.9,", "%10.1.0.9,", "line 4, column 11: "),
        ("mtu 1400'", "mtu many'", "line 4, column 11: \"many\" is not an MTU of a route"),
        (
            "in wan action drop",
            "in wan acton drop",
            "line 5, column 10: unknown word \"acton\"; did you mean",
        ),
        ("masquerade out", "masq out", "line 6, column 8: \"masq\" is no kind of rule"),
        ("'lan'\ndevice", "'l an'\ndevice", "line 10, column 8: \"l an\" is not a name of a port"),
        ("packet:eth1", "pakket:eth1", "line 11, column 10: \"pakket\" is not a kind of port"),
        (
            "packet:eth1",
            "packet:eth1,10.5.0.1/24",
            "line 11, column 10: \"10.5.0.1/24\" belongs to the key",
        ),
        ("fd00:1::1/64", "fd00:1::1/x", "line 12, column 29: "),
        ("mtu = 1400", "mtu = 1279", "line 13, column 7: \"1279\" is not an MTU of a port"),
        ("@02:00:00:00:00:07", "@02", "line 14, column 14: \"02\" is not an Ethernet address"),
        ("pool = '10.1.0.100-", "pool = '10.1.0.200-", "line 32, column 8: pool="),
        ("lease = 600", "lease = 6", "line 33, column 9: lease=6: expected 60 to 31536000 seconds"),
        // Contradictions.
        ("'old'\n", "'lan'\n", "line 20, column 1: two ports are called \"lan\""),
        (
            "10.3.0.1/24",
            "10.1.0.1/16",
            "line 20, column 1: 10.1.0.1 is given twice, to lan and to old",
        ),
        ("vlan:lan.10", "vlan:dmz.10", "line 20, column 1: old stands on the port \"dmz\""),
        (
            "10.1.0.8*3",
            "10.1.0.8%dmz",
            "line 4, column 11: the route to 10.9.0.0/16 names the port \"dmz\"",
        ),
        (
            "10.1.0.8*3",
            "10.3.0.8",
            "line 4, column 11: the route to 10.9.0.0/16 leads through the port old",
        ),
        ("10.1.0.8*3", "10.7.0.8", "line 4, column 11: no port is in the network of the next hop"),
        (
            "'blackhole 10.0.0.0/8'",
            "'blackhole 10.9.0.0/16 metric 5', 'blackhole 10.9.0.0/16 metric 5'",
            "line 4, column 98: there are two routes",
        ),
        (
            "id 10 in wan action",
            "id 10 in dmz action",
            "line 5, column 10: rule 10: there is no interface \"dmz\"",
        ),
        (
            "masquerade out wan",
            "id 7 masquerade out dmz",
            "line 6, column 8: address translation: rule 7",
        ),
        (
            "masquerade out wan'",
            "id 7 masquerade out wan', 'id 7 masquerade out lan'",
            "line 6, column 35: address translation: there are two rules with id 7",
        ),
        (
            "10.1.0.7@",
            "10.8.0.7@",
            "line 9, column 1: the neighbor 10.8.0.7 is in no network of lan",
        ),
        (
            "'10.1.0.7@",
            "'10.1.0.7@02:00:00:00:00:08', '10.1.0.7@",
            "line 9, column 1: the neighbor 10.1.0.7 of lan is given twice",
        ),
        (
            "@02:00:00:00:00:07'",
            "@ff:ff:ff:ff:ff:ff'",
            "line 9, column 1: 10.1.0.7@ff:ff:ff:ff:ff:ff is not the address of one neighbor",
        ),
        (
            "port = 'wan'",
            "port = 'wen'",
            "line 26, column 1: --dhcp names the port \"wen\"; there are lan, wan",
        ),
        ("0.199'", "1.10'", "line 30, column 1: --dhcp-server lan: 10.1.1.10 is not an address"),
        ("lifetime = 90", "lifetime = 9", "line 37, column 1: lifetime=9 is below interval=30"),
        ("valid = 600", "valid = '-'", "line 41, column 9: valid=-: expected a number from 0"),
        ("managed = true", "managed = 1", "line 44, column 11: `managed` is of the type integer"),
        ("['fd00::53']", "['x']", "line 46, column 8: \"x\" is not an IPv6 address"),
        ("['lan', 'old']", "['lan', 'dmz']", "line 49, column 1: --dns names the port \"dmz\""),
        ("['lan', 'old']", "['lan', 'lan']", "line 50, column 18: the port lan is given twice"),
        ("['lan', 'old']", "[]", "line 50, column 10: `listen` names no port"),
        ("ttl-min = 5", "ttl-min = 700", "line 49, column 1: ttl-min=700 is above ttl-max=600"),
        ("pending = 20", "pending = 0", "line 57, column 11: pending=0: expected a number from 1"),
        ("'9.9.9.9', '[2", "'10.1.0.1', '[2", "line 49, column 1: the upstream server 10.1.0.1:53"),
        ("[dns]", "[[dns]]", "line 49, column 1: `dns` is of the type array; expected a table"),
        (
            "rules = [",
            "acl = 'x'\nrules = [",
            "line 6, column 9: `rules` and `acl` exclude each other",
        ),
    ];
    read(HOME).expect("valid");
    read(&HOME.replace("'10.1.0.7@", "'fe80::7@")).expect("a link-local neighbor is on the link");
    for (there, wrong, expected) in cases {
        assert!(HOME.contains(there), "{there}");
        let error = read(&HOME.replacen(there, wrong, 1)).expect_err(wrong).to_string();
        assert!(error.starts_with(expected), "{wrong}:\n{error}\n{expected}");
    }
}

#[test]
fn a_file_without_ports_is_refused() {
    let error = read("shards = 1\n").expect_err("no port").to_string();
    assert!(error.contains("[[port]]"), "{error}");
    let many: String = (0..65)
        .map(|n| {
            format!("[[port]]\nname = 'p{n}'\ndevice = 'tap:t{n}'\naddresses = ['10.{n}.0.1/24']\n")
        })
        .collect();
    let error = read(&many).expect_err("too many ports").to_string();
    assert!(error.starts_with("line 257, column 1: 65 ports: at most 64 are possible"), "{error}");
}
