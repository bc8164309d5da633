//! `towpath acl`: shows and changes the access list of a running router or run.
//!
//! `answer` handles the requests in the process that has the stack.

mod answer;

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value};
use towpath_filter::{Rule, RuleList, SetMembers, check_set_name};
use towpath_model::{Acl, AclChange, AclSet, Error, Word, printable};

use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};

pub use answer::{NO_INTERFACE, action_word, change, follow_names, rule_action_word, shown};

/// Options of `towpath acl`.
#[derive(Debug, Args)]
pub struct AclArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// show, add RULE, replace RULE, del ID, set NAME [add|del] MEMBERS, del set NAME,
    /// default [hook HOOKS] action ACTION, load FILE, flush
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub words: Vec<String>,
}

/// Text of `towpath acl --help` before the options.
pub const ABOUT: &str = "\
Show and change the access list of a running router or run.

Rules have the grammar of --acl of `towpath router` (docs/acl.md). A change takes effect whole or \
not at all: each packet is judged by the list before or by the one after. Counters of rules that \
stay the same go on. What `show` prints, `load` reads.

  show                      rules and defaults, each with its packets and bytes
  add id N ... action A     a new rule
  replace id N ... action A a new rule, or another one in the place of that number
  del N                     without rule N
  set NAME MEMBERS          a set of prefixes or ports, for rules with src @NAME, dport @NAME
  set NAME add MEMBERS      more members: 10.1.0.0/16,2001:db8::/32 or 80,8000-8100
  set NAME del MEMBERS      without these members
  del set NAME              without the set
  default [hook H] action A the fate of packets that no rule matches
  load FILE                 the list of a file in the place of all (- is standard input)
  flush                     no rules, and all packets pass";

/// Text of `towpath acl --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath acl add id 25 in wan src 198.51.100.0/24 action drop
  towpath acl set blocked add 198.51.100.0/24
  towpath acl --name office show
  towpath acl -j | jq '.rules[] | select(.packets == 0).id'

Exit status:
  0  done
  1  words that are wrong, or no such run
  2  the run refused the change, or did not answer";

enum Command {
    Show,
    Change(Vec<AclChange>),
}

/// Maximum length in bytes of the members in one change. The control protocol limits the length of
/// a change.
const MEMBERS_LEN_MAX: usize = 3072;

/// Runs `towpath acl`.
///
/// # Errors
/// Returns an error message for the user.
pub fn acl(args: &AclArgs) -> Result<()> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match parse(&words)? {
        Command::Show => {
            let client = args.which.client_to_look().map_err(no_answer)?;
            let list = client.acl().map_err(no_answer)?;
            match args.json {
                true => crate::output::write_json(&json(&list)?),
                false => crate::output::write_text(&text(&list)),
            }
        }
        Command::Change(changes) => {
            let client = args.which.client().map_err(no_answer)?;
            match client.apply_acl(&changes) {
                Ok(_) => Ok(()),
                Err(Error::Refused(fault)) if fault.code.as_str() == "refused" => {
                    Err(Failure::error(ExitCode::Usage, format!("Error: {}", fault.message)))
                }
                Err(error) => Err(no_answer(error)),
            }
        }
    }
}

fn parse(words: &[&str]) -> Result<Command> {
    let usage = |why: String| Failure::error(ExitCode::IpUsage, why);
    let change = match words {
        [] | ["show" | "list"] => return Ok(Command::Show),
        [how @ ("add" | "replace"), rest @ ..] => {
            let text = rest.join(" ");
            let rule: Rule = text
                .parse()
                .map_err(|error| usage(format!("acl {how} {text}\n{error} (behind {how})")))?;
            let rule = rule.to_string();
            match *how {
                "add" => AclChange::AddRule { rule },
                _ => AclChange::ReplaceRule { rule },
            }
        }
        ["set", name, how @ ("add" | "del"), members @ ..] => {
            return set(name, how, members).map(Command::Change).map_err(usage);
        }
        ["set", name, members @ ..] => {
            return set(name, "set", members).map(Command::Change).map_err(usage);
        }
        ["del" | "delete", "set", name] => AclChange::DeleteSet { name: (*name).to_owned() },
        ["del" | "delete", "id", id] | ["del" | "delete", id] => {
            let id = id.parse().map_err(|_| usage(format!("{id:?} is not a number of a rule")))?;
            AclChange::DeleteRule { id }
        }
        ["default", "hook", hooks, "action", action] => default(hooks, action).map_err(usage)?,
        ["default", "action", action] => default("input,forward", action).map_err(usage)?,
        ["load", file] => {
            let text = match *file {
                "-" => std::io::read_to_string(std::io::stdin()).context("standard input"),
                file => std::fs::read_to_string(file).with_context(|| (*file).to_owned()),
            };
            let text = text.map_err(|error| usage(format!("{error:#}")))?;
            RuleList::parse(&text).map_err(|error| usage(format!("{file}: {error}")))?;
            AclChange::Load { text }
        }
        ["flush"] => AclChange::Load { text: String::new() },
        words => {
            return Err(usage(format!(
                "\"{}\" is not a command of towpath acl: expected show, add id N ... action A, \
                 replace id N ... action A, del N, set NAME MEMBERS, del set NAME, \
                 default [hook H] action A, load FILE or flush",
                words.join(" ")
            )));
        }
    };
    Ok(Command::Change(vec![change]))
}

/// Returns the changes of the members of a set. Many members are divided among several changes.
fn set(name: &str, how: &str, members: &[&str]) -> Result<Vec<AclChange>, String> {
    check_set_name(name).map_err(|error| error.to_string())?;
    let members = members.join(",");
    let all: SetMembers = members.parse().map_err(|error| format!("set {name}: {error}"))?;
    let mut parts = vec![String::new()];
    for member in all.to_string().split(',') {
        let last = parts.len() - 1;
        match parts[last].len() + member.len() < MEMBERS_LEN_MAX {
            true if parts[last].is_empty() => parts[last].push_str(member),
            true => {
                parts[last].push(',');
                parts[last].push_str(member);
            }
            false => parts.push(member.to_owned()),
        }
    }
    let change = |(n, members): (usize, String)| {
        let name = name.to_owned();
        match how {
            "del" => AclChange::DeleteMembers { name, members },
            "set" if n == 0 => AclChange::SetMembers { name, members },
            _ => AclChange::AddMembers { name, members },
        }
    };
    Ok(parts.into_iter().enumerate().map(change).collect())
}

fn default(hooks: &str, action: &str) -> Result<AclChange, String> {
    let hooks: Vec<_> = hooks.split(',').collect();
    answer::default_of(&hooks, action)?;
    let word = |text: &str| Word::try_from(text).map_err(|_| format!("{text:?} is no word"));
    let hooks = hooks.into_iter().map(word).collect::<Result<Vec<_>, _>>()?;
    Ok(AclChange::SetDefault { hooks, action: word(action)? })
}

/// Formats the access list as a file of rules, with the counters as comments.
fn text(list: &Acl) -> String {
    let mut out = String::new();
    for AclSet { name, members } in &list.sets {
        // Ignore the result: writing to a String cannot fail.
        let _ = writeln!(out, "acl set {} {}", printable(name), printable(members));
    }
    let width = list.rules.iter().map(|known| known.rule.chars().count()).max().unwrap_or(0);
    for known in &list.rules {
        // Replace line breaks, because the rule comes from another process and must stay on one
        // line.
        let rule = printable(&known.rule);
        let (packets, bytes) = (known.packets, known.bytes);
        let _ = writeln!(out, "acl add {rule:<width$}  # {packets} packets, {bytes} bytes");
    }
    for known in &list.defaults {
        let (hook, action) = (&known.hook, &known.action);
        if known.action.as_str() != "accept" || known.packets > 0 {
            let (packets, bytes) = (known.packets, known.bytes);
            let line = format!("acl default hook {hook} action {action}");
            let _ = writeln!(out, "{line:<w$}  # {packets} packets, {bytes} bytes", w = width + 8);
        }
    }
    out
}

/// Formats the access list as JSON, with one object per rule.
fn json(list: &Acl) -> Result<String> {
    let counts = |packets: u64, bytes: u64| {
        [("packets".to_owned(), Value::from(packets)), ("bytes".to_owned(), bytes.into())]
    };
    let mut rules = Vec::new();
    for known in &list.rules {
        let rule: Rule = known.rule.parse().context("a rule of the run cannot be read")?;
        let words = rule.words().into_iter().map(|(key, value)| {
            let value = match key {
                "id" => rule.id.into(),
                "log" => true.into(),
                "mark" => rule.mark.into(),
                "burst" => rule.rate.map(|rate| rate.burst).into(),
                _ => value.into(),
            };
            (key.to_owned(), value)
        });
        let all: Map<String, Value> = words.chain(counts(known.packets, known.bytes)).collect();
        rules.push(Value::Object(all));
    }
    let defaults = list.defaults.iter().map(|known| {
        let words = [("hook", &known.hook), ("action", &known.action)];
        let words = words.map(|(key, word)| (key.to_owned(), Value::from(word.as_str())));
        Value::Object(words.into_iter().chain(counts(known.packets, known.bytes)).collect())
    });
    let sets = list.sets.iter().map(set_json).collect::<Result<_>>()?;
    let all = [("sets", sets), ("rules", rules), ("defaults", defaults.collect())];
    let all: Map<String, Value> =
        all.into_iter().map(|(key, list)| (key.to_owned(), list.into())).collect();
    Ok(serde_json::to_string(&Value::Object(all))? + "\n")
}

/// Returns a set as a JSON object: its name, and the arrays of its prefixes and ports. An empty set
/// has both arrays, so that scripts can iterate over either.
fn set_json(set: &AclSet) -> Result<Value> {
    let members: SetMembers = set.members.parse().context("a set of the run cannot be read")?;
    let prefixes: Vec<_> = members.prefixes().iter().map(ToString::to_string).collect();
    let ports: Vec<_> = members.ranges().iter().map(ToString::to_string).collect();
    Ok(serde_json::json!({ "name": set.name, "prefixes": prefixes, "ports": ports }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_model::{AclDefault, AclRule};

    fn list() -> Acl {
        let rule = |rule: &str, packets| AclRule { rule: rule.to_owned(), packets, bytes: 60 };
        let rules = vec![
            rule("id 10 proto tcp dport 80-90 in wan action drop log rate 5/s", 3),
            rule("id 20 src @office dport @web mark 7 rate 9/s burst 2 action mark 8", 0),
        ];
        let default = |hook, action, packets| AclDefault {
            hook: Word::known(hook),
            action: Word::known(action),
            packets,
            bytes: 0,
        };
        let defaults = vec![default("input", "drop", 0), default("output", "accept", 0)];
        let set = |name: &str, members: &str| AclSet {
            name: name.to_owned(),
            members: members.to_owned(),
        };
        let sets = vec![
            set("blocked", "none"),
            set("office", "10.0.0.0/8,2001:db8::/32"),
            set("web", "80,443"),
        ];
        Acl { sets, rules, defaults }
    }

    #[test]
    fn what_is_shown_can_be_loaded() {
        let text = text(&list());
        assert!(text.contains("# 3 packets, 60 bytes\n"), "{text}");
        let read = RuleList::parse(&text).unwrap();
        let rules: Vec<_> = read.iter().map(ToString::to_string).collect();
        assert_eq!(rules, list().rules.into_iter().map(|known| known.rule).collect::<Vec<_>>());
        assert!(read.to_string().contains("acl default hook input action drop"), "{read}");
    }

    #[test]
    fn json_has_the_words_of_a_rule_as_keys() {
        let value: Value = serde_json::from_str(&json(&list()).unwrap()).unwrap();
        let wanted = serde_json::json!({
            "id": 10, "proto": "tcp", "dport": "80-90", "in": "wan", "action": "drop",
            "log": true, "log-rate": "5/s", "packets": 3, "bytes": 60,
        });
        assert_eq!(value["rules"][0], wanted);
        let wanted = serde_json::json!({
            "id": 20, "src": "@office", "dport": "@web", "mark": 7, "rate": "9/s", "burst": 2,
            "action": "mark 8", "packets": 0, "bytes": 60,
        });
        assert_eq!(value["rules"][1], wanted);
        let wanted = serde_json::json!([
            { "name": "blocked", "prefixes": [], "ports": [] },
            { "name": "office", "prefixes": ["10.0.0.0/8", "2001:db8::/32"], "ports": [] },
            { "name": "web", "prefixes": [], "ports": ["80", "443"] },
        ]);
        assert_eq!(value["sets"], wanted);
        assert_eq!(value["defaults"][0]["action"], "drop");
    }

    #[test]
    fn many_members_are_divided_among_changes() {
        let words: Vec<_> = (0..1000).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let changes = set("office", "set", &words).unwrap();
        assert!((2..10).contains(&changes.len()), "{}", changes.len());
        let mut count = 0;
        for (n, change) in changes.iter().enumerate() {
            let members = match change {
                AclChange::SetMembers { members, .. } if n == 0 => members,
                AclChange::AddMembers { members, .. } if n > 0 => members,
                other => panic!("{other:?}"),
            };
            assert!(members.len() <= MEMBERS_LEN_MAX);
            count += members.split(',').count();
        }
        assert_eq!(count, 1000);
    }

    #[test]
    fn words_that_are_wrong_are_named() {
        let wrong = [
            ("add id 10 dprot 80 action drop", "did you mean \"dport\"?"),
            ("del ten", "\"ten\" is not a number of a rule"),
            ("default hook inputs action drop", "\"inputs\" is no hook"),
            ("default action maybe", "expected accept, drop or reject"),
            ("insert 5", "\"insert 5\" is not a command"),
            ("set", "\"set\" is not a command"),
            ("set of.fice 80", "not a valid name of a set"),
            ("set office", "not a list of members"),
            ("set office add ten", "\"ten\" is not a member of a set"),
        ];
        for (line, wanted) in wrong {
            let words: Vec<_> = line.split_whitespace().collect();
            let error = parse(&words).err().expect(line).to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }
}
