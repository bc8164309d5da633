//! `towpath acl`: shows and changes the access list of a running router or run.
//!
//! `answer` handles the requests in the process that has the stack.

mod answer;

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value};
use towpath_filter::{Rule, RuleList};
use towpath_model::{Acl, AclChange, Error, Word, printable};

use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};

pub use answer::{NO_INTERFACE, action_word, change, follow_names, shown};

/// Options of `towpath acl`.
#[derive(Debug, Args)]
pub struct AclArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// show, add RULE, replace RULE, del ID, default [hook HOOKS] action ACTION, load FILE, flush
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
  default [hook H] action A the fate of packets that no rule matches
  load FILE                 the list of a file in the place of all (- is standard input)
  flush                     no rules, and all packets pass";

/// Text of `towpath acl --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath acl add id 25 in wan src 198.51.100.0/24 action drop
  towpath acl --name office show
  towpath acl -j | jq '.rules[] | select(.packets == 0).id'

Exit status:
  0  done
  1  words that are wrong, or no such run
  2  the run refused the change, or did not answer";

enum Command {
    Show,
    Change(AclChange),
}

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
        Command::Change(change) => {
            let client = args.which.client().map_err(no_answer)?;
            match client.apply_acl(&[change]) {
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
                 replace id N ... action A, del N, default [hook H] action A, load FILE or flush",
                words.join(" ")
            )));
        }
    };
    Ok(Command::Change(change))
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
    let width = list.rules.iter().map(|known| known.rule.chars().count()).max().unwrap_or(0);
    for known in &list.rules {
        // Replace line breaks, because the rule comes from another process and must stay on one
        // line.
        let rule = printable(&known.rule);
        let (packets, bytes) = (known.packets, known.bytes);
        // Ignore the result: writing to a String cannot fail.
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
    let all = [("rules", rules), ("defaults", defaults.collect())];
    let all: Map<String, Value> =
        all.into_iter().map(|(key, list)| (key.to_owned(), list.into())).collect();
    Ok(serde_json::to_string(&Value::Object(all))? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_model::{AclDefault, AclRule};

    fn list() -> Acl {
        let rule = |rule: &str, packets| AclRule { rule: rule.to_owned(), packets, bytes: 60 };
        let rules = vec![
            rule("id 10 proto tcp dport 80-90 in wan action drop log rate 5/s", 3),
            rule("id 20 action accept", 0),
        ];
        let default = |hook, action, packets| AclDefault {
            hook: Word::known(hook),
            action: Word::known(action),
            packets,
            bytes: 0,
        };
        let defaults = vec![default("input", "drop", 0), default("output", "accept", 0)];
        Acl { rules, defaults }
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
            "log": true, "rate": "5/s", "packets": 3, "bytes": 60,
        });
        assert_eq!(value["rules"][0], wanted);
        assert_eq!(value["defaults"][0]["action"], "drop");
    }

    #[test]
    fn words_that_are_wrong_are_named() {
        let wrong = [
            ("add id 10 dprot 80 action drop", "did you mean \"dport\"?"),
            ("del ten", "\"ten\" is not a number of a rule"),
            ("default hook inputs action drop", "\"inputs\" is no hook"),
            ("default action maybe", "expected accept, drop or reject"),
            ("insert 5", "\"insert 5\" is not a command"),
        ];
        for (line, wanted) in wrong {
            let words: Vec<_> = line.split_whitespace().collect();
            let error = parse(&words).err().expect(line).to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }
}
