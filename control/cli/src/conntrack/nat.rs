//! `towpath nat`: shows and changes the rules of address translation of a running router.

use anyhow::Result;
use clap::Args;
use serde_json::Value;
use towpath_conntrack::NatRule;
use towpath_model::{Error, Nat, NatChange, printable};

use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};
use crate::output;

/// Options of `towpath nat`.
#[derive(Debug, Args)]
pub struct NatArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// show, add RULE, replace id N RULE, del N, flush
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub words: Vec<String>,
}

/// Text of `towpath nat --help` before the options.
pub const ABOUT: &str = "\
Show and change the rules of address translation of a running router.

Rules have the grammar of --nat of `towpath router` (docs/router.md). The matching rule with the \
lowest number decides about a new flow. Flows keep their translation when rules change; `towpath \
conntrack delete` ends them.

  show                  rules, each with the flows that it has translated
  add RULE              a new rule; without \"id N\" it goes behind all others
  replace id N RULE     a new rule, or another one in the place of that number
  del N                 without rule N
  flush                 no rules";

/// Text of `towpath nat --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath nat add masquerade out wan
  towpath nat add id 5 snat src 10.1.0.0/24 out wan to 192.0.2.5
  towpath nat add dnat in wan proto tcp dport 8080 to 10.1.0.5:80
  towpath nat add redirect in lan proto udp dport 53 to :5353
  towpath nat --name office show

Exit status:
  0  done
  1  words that are wrong, or no such router
  2  the router refused the change, or did not answer";

/// Runs `towpath nat`.
///
/// # Errors
/// Returns an error message for the user.
pub fn nat(args: &NatArgs) -> Result<()> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let Some(change) = parse(&words)? else {
        let client = args.which.client_to_look().map_err(no_answer)?;
        let nat = client.nat().map_err(no_answer)?;
        return match args.json {
            true => output::write_json(&json(&nat)?),
            false => output::write_text(&text(&nat)),
        };
    };
    let client = args.which.client().map_err(no_answer)?;
    match client.apply_nat(&[change]) {
        Ok(_) => Ok(()),
        Err(Error::Refused(fault)) if fault.code.as_str() == "refused" => {
            Err(Failure::error(ExitCode::Usage, format!("Error: {}", fault.message)))
        }
        Err(error) => Err(no_answer(error)),
    }
}

/// Parses the words of the command. `None` for `show`.
fn parse(words: &[&str]) -> Result<Option<NatChange>> {
    let usage = |why: String| Failure::error(ExitCode::IpUsage, why);
    Ok(Some(match words {
        [] | ["show" | "list"] => return Ok(None),
        [how @ ("add" | "replace"), rest @ ..] => {
            let rule = rest.join(" ");
            rule.parse::<NatRule>().map_err(|error| usage(format!("nat {how} {rule}\n{error}")))?;
            match *how {
                "add" => NatChange::AddRule { rule },
                _ => NatChange::ReplaceRule { rule },
            }
        }
        ["del" | "delete", "id", id] | ["del" | "delete", id] => {
            let id = id.parse().map_err(|_| usage(format!("{id:?} is not a number of a rule")))?;
            NatChange::DeleteRule { id }
        }
        ["flush"] => NatChange::Flush,
        words => {
            return Err(usage(format!(
                "\"{}\" is not a command of towpath nat: expected show, add RULE, replace id N \
                 RULE, del N or flush",
                words.join(" ")
            )));
        }
    }))
}

/// Formats each rule as the command that adds it, with the number of flows as a comment.
fn text(nat: &Nat) -> String {
    let width = nat.rules.iter().map(|rule| rule.rule.chars().count()).max().unwrap_or(0);
    let line = |(rule, flows): (String, u64)| format!("nat add {rule:<width$}  # {flows} flows\n");
    // Replace line breaks, because the rule comes from another process and must stay on one line.
    nat.rules.iter().map(|rule| (printable(&rule.rule), rule.flows)).map(line).collect()
}

/// Formats the rules as JSON, with one object per rule.
fn json(nat: &Nat) -> Result<String> {
    let rules =
        nat.rules.iter().map(|rule| serde_json::json!({ "rule": rule.rule, "flows": rule.flows }));
    let all = Value::Array(rules.collect());
    Ok(serde_json::to_string(&serde_json::json!({ "rules": all }))? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_wrong_are_named() {
        let wrong = [
            ("insert 5", "\"insert 5\" is not a command"),
            ("del ten", "\"ten\" is not a number of a rule"),
            ("add masq out wan", "expected masquerade, snat, dnat or redirect"),
        ];
        for (text, wanted) in wrong {
            let words: Vec<_> = text.split_whitespace().collect();
            let error = parse(&words).expect_err(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        assert!(parse(&["add", "masquerade", "out", "wan"]).unwrap().is_some());
    }
}
