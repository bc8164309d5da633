//! Completes the words of `towpath ip`, `acl`, `nat`, `conntrack`, `port` and `setting`, because
//! clap does not know their grammar.

use towpath_model::user_id;
use towpath_tcp::{TCP_DEFAULTS, TcpDefaultRow};
use towpath_uplink::DEVICES;

use crate::ip::{WhichRun, object_verbs, objects};

/// Options of these commands that require a value.
const WITH_VALUE: [&str; 5] = ["--run", "--name", "--user", "-b", "--batch"];

/// Returns the words that may follow `line`, whose first word is the command. Returns no words
/// where a file, the value of an option, or free text is expected.
pub fn next(line: &[String]) -> Vec<String> {
    let Some((command, rest)) = line.split_first() else { return Vec::new() };
    // Skip "=", because bash splits `--name=web` into three words.
    let mut rest = rest.iter().map(String::as_str).filter(|word| *word != "=");
    let mut which = WhichRun { run: None, name: None, user: None };
    let mut words = Vec::new();
    while let Some(word) = rest.next() {
        if WITH_VALUE.contains(&word) {
            let Some(value) = rest.next() else { return Vec::new() };
            match word {
                "--run" => which.run = value.parse().ok(),
                "--name" => which.name = Some(value.to_owned()),
                "--user" => which.user = user_id(value),
                _ => {}
            }
        } else if !word.starts_with('-') {
            words.push(word);
        }
    }
    let fixed = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match (command.as_str(), &words[..]) {
        ("ip", []) => fixed(&objects()),
        ("ip", [object]) => fixed(object_verbs(object)),
        ("ip", [_, .., "dev"]) => ports(&which),
        ("ip", [object, ..]) if is_monitor(object) => fixed(object_verbs(object)),
        ("ip", [link, verb]) if is_link(link) && ["set", "del", "delete"].contains(verb) => {
            ports(&which)
        }
        ("ip", [link, "add", ..]) if is_link(link) => match words.last() {
            Some(&"type") => DEVICES.iter().map(|driver| driver.name.to_owned()).collect(),
            Some(_) if words.len() == 3 => vec!["type".to_owned()],
            _ => Vec::new(),
        },
        ("acl", []) => fixed(&["show", "add", "replace", "del", "set", "default", "load", "flush"]),
        ("acl", ["del"]) => fixed(&["set"]),
        ("acl", ["set"] | ["del", "set"]) => sets(&which),
        ("acl", ["set", _]) => fixed(&["add", "del", "none"]),
        ("nat", []) => fixed(&["show", "add", "replace", "del", "flush"]),
        ("nat", ["add"]) => fixed(&["masquerade", "snat", "dnat", "redirect", "id"]),
        ("conntrack", []) => fixed(&["list", "delete", "flush", "events", "stats"]),
        ("conntrack", ["list" | "delete", rest @ ..]) if rest.len() % 2 == 0 => {
            fixed(&["id", "proto", "state", "src", "dst", "sport", "dport"])
        }
        ("port", []) => [fixed(&["show"]), ports(&which)].concat(),
        ("port", ["show" | "list"]) => ports(&which),
        ("setting", []) => fixed(&["list", "get", "set"]),
        ("setting", ["get", ..]) => TCP_DEFAULTS.iter().map(|row| row.name.to_owned()).collect(),
        // Bash splits `sack=on` into three words, and completes only the last one.
        ("setting", ["set", .., name]) if line.last().is_some_and(|word| word == "=") => {
            TcpDefaultRow::find(name).map(values).unwrap_or_default()
        }
        ("setting", ["set", ..]) => TCP_DEFAULTS.iter().flat_map(assignments).collect(),
        _ => Vec::new(),
    }
}

/// Returns the valid values of a setting, if they are a list of words.
fn values(row: &TcpDefaultRow) -> Vec<String> {
    let values = (row.values)();
    let words = values.split(", ").filter(|word| !word.contains(' '));
    words.map(str::to_owned).collect()
}

/// Returns the words that set a setting: one for each value, or the name with `=`.
fn assignments(row: &TcpDefaultRow) -> Vec<String> {
    let words: Vec<_> = values(row).iter().map(|value| format!("{}={value}", row.name)).collect();
    if words.is_empty() { vec![format!("{}=", row.name)] } else { words }
}

fn is_monitor(word: &str) -> bool {
    object_verbs(word) == object_verbs("monitor")
}

fn is_link(word: &str) -> bool {
    object_verbs(word) == object_verbs("link")
}

/// Returns the names of the ports of the selected run. Returns no names if the run does not answer.
fn ports(which: &WhichRun) -> Vec<String> {
    let ports = which.client_to_look_quietly().and_then(|client| client.ports());
    ports.into_iter().flatten().map(|port| port.name.to_string()).collect()
}

/// Returns the names of the sets in the access list of the selected run.
fn sets(which: &WhichRun) -> Vec<String> {
    let list = which.client_to_look_quietly().and_then(|client| client.acl());
    list.into_iter().flat_map(|list| list.sets).map(|set| set.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_from_those_before() {
        let next = |line: &str| {
            let line: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            next(&line).join(" ")
        };
        assert_eq!(next("ip"), "addr route neigh link monitor");
        assert_eq!(next("ip -6 --name web"), "addr route neigh link monitor");
        assert_eq!(next("ip --name"), "");
        assert_eq!(next("ip -j r"), "show get add append change replace del");
        assert_eq!(next("ip link"), "show add set del");
        assert_eq!(next("ip monitor"), "all link addr route neigh label dev");
        assert_eq!(next("ip monitor link"), "all link addr route neigh label dev");
        assert_eq!(next("ip link add lan2"), "type");
        assert!(next("ip l add lan2 type").starts_with("tap packet xdp"));
        assert_eq!(next("ip link add lan2 type tap"), "");
        assert_eq!(next("ip addr add"), "");
        assert_eq!(next("ip nonsense"), "");
        assert_eq!(next("acl --name = web"), "show add replace del set default load flush");
        assert_eq!(next("acl load"), "");
        assert_eq!(next("acl set office"), "add del none");
        assert_eq!(next("acl --name no_such_run set"), "");
        assert_eq!(next("nat"), "show add replace del flush");
        assert_eq!(next("conntrack list src"), "");
        assert_eq!(next("conntrack list src ::1"), "id proto state src dst sport dport");
        assert_eq!(next("port --name no_such_run"), "show");
        assert_eq!(next("setting -j"), "list get set");
        assert!(next("setting get ecn").starts_with("congestion timestamps sack"));
        let set = next("setting set ecn=on");
        assert!(set.contains(" sack=on sack=off ") && set.ends_with(" rmem-max="), "{set}");
        assert_eq!(next("setting set syn-cookies ="), "off on always");
        assert_eq!(next("setting set rmem-max ="), "");
    }
}
