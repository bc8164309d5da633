//! Completes the words of `towpath ip`, `acl`, `nat`, `conntrack` and `port`, because clap does not
//! know their grammar.

use towpath_model::user_id;
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
        ("acl", []) => fixed(&["show", "add", "replace", "del", "default", "load", "flush"]),
        ("nat", []) => fixed(&["show", "add", "replace", "del", "flush"]),
        ("nat", ["add"]) => fixed(&["masquerade", "snat", "dnat", "redirect", "id"]),
        ("conntrack", []) => fixed(&["list", "delete", "flush", "events", "stats"]),
        ("conntrack", ["list" | "delete", rest @ ..]) if rest.len() % 2 == 0 => {
            fixed(&["id", "proto", "state", "src", "dst", "sport", "dport"])
        }
        ("port", []) => [fixed(&["show"]), ports(&which)].concat(),
        ("port", ["show" | "list"]) => ports(&which),
        _ => Vec::new(),
    }
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
        assert_eq!(next("acl --name = web"), "show add replace del default load flush");
        assert_eq!(next("acl load"), "");
        assert_eq!(next("nat"), "show add replace del flush");
        assert_eq!(next("conntrack list src"), "");
        assert_eq!(next("conntrack list src ::1"), "id proto state src dst sport dport");
        assert_eq!(next("port --name no_such_run"), "show");
    }
}
