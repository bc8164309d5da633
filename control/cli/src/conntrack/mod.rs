//! `towpath conntrack`: shows and deletes the flows of a running router.
//!
//! `nat` implements the command of address translation. `answer` handles the requests in the
//! process that has the stack.

mod answer;
pub mod nat;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use towpath_model::{Client, Error, FlowFilter, ShownFlow, Word};

use crate::counters::print_layer;
use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};
use crate::output;

pub use answer::{
    change_nat, counters, delete, ensure_tracker, events, flows, follow_names, nat_rules, shown_nat,
};

/// Options of `towpath conntrack`.
#[derive(Debug, Args)]
pub struct ConntrackArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON; for events, an object per line
    #[arg(short, long)]
    pub json: bool,
    /// list, list FILTER, delete FILTER, flush, events, stats
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub words: Vec<String>,
}

/// Text of `towpath conntrack --help` before the options.
pub const ABOUT: &str = "\
Show and delete the flows that a running router tracks.

A router tracks flows if it has rules of address translation (--nat, --forward, `towpath nat`) or \
an access list that matches states (docs/router.md).

  list [FILTER]    the flows, each with its state, translation, traffic and seconds left
  delete FILTER    forget flows; their next packets open new ones, or are refused
  flush            forget all flows
  events           print each new and each ended flow, until Ctrl-C or the router's end
  stats            the counters

FILTER is one or more of: id N, proto P, state S, src PREFIX, dst PREFIX, sport N, dport N. \
Addresses and ports are those of the first packet of a flow, before its translation.";

/// Text of `towpath conntrack --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath conntrack list src 10.1.0.2 proto tcp
  towpath conntrack -j | jq '[.[] | select(.state == \"established\")] | length'
  towpath conntrack delete dport 8080

Exit status:
  0  done
  1  words that are wrong, or no such router
  2  the router refused, or did not answer";

/// Time between two queries for events.
const EVENTS_PAUSE: Duration = Duration::from_millis(200);

enum FlowCommand {
    List(FlowFilter),
    Delete(FlowFilter),
    Events,
    Stats,
}

/// Runs `towpath conntrack`.
///
/// # Errors
/// Returns an error message for the user.
pub fn conntrack(args: &ConntrackArgs) -> Result<()> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match parse(&words)? {
        FlowCommand::List(filter) => {
            let flows = args.which.client_to_look().and_then(|client| client.flows(&filter));
            let flows = flows.map_err(no_answer)?;
            match args.json {
                true => output::write_json(&(serde_json::to_string(&flows)? + "\n")),
                false => output::write_text(&flows.iter().map(line).collect::<String>()),
            }
        }
        FlowCommand::Delete(filter) => {
            let client = args.which.client().map_err(no_answer)?;
            let count = client.delete_flows(&filter).map_err(no_answer)?;
            match count {
                0 => Err(Failure::error(ExitCode::Usage, "no flow matches")),
                count => output::write_text(&format!("{count} deleted\n")),
            }
        }
        FlowCommand::Events => {
            let client = args.which.client_to_look().map_err(no_answer)?;
            print_events(&client, args.json)
        }
        FlowCommand::Stats => {
            let client = args.which.client_to_look().map_err(no_answer)?;
            let layers = client.counters().map_err(no_answer)?;
            print_layer(&layers, "conntrack", "this router tracks no flows", args.json)
        }
    }
}

/// Prints flow events until the router ends.
fn print_events(client: &Client, json: bool) -> Result<()> {
    let (_, mut next) = client.flow_events(0).map_err(no_answer)?;
    loop {
        std::thread::sleep(EVENTS_PAUSE);
        let (events, after) = match client.flow_events(next) {
            Ok(told) => told,
            // The router has ended.
            Err(Error::NoRun(_)) => return Ok(()),
            Err(error) => return Err(no_answer(error)),
        };
        let lost = after.saturating_sub(next).saturating_sub(events.len() as u64);
        if lost > 0 {
            crate::messages::error(&format!("{lost} events came too fast to be kept"));
        }
        let mut out = String::new();
        for event in &events {
            match json {
                true => out += &(serde_json::to_string(event)? + "\n"),
                false => out += &line(event),
            }
        }
        output::write_text(&out)?;
        next = after;
    }
}

fn parse(words: &[&str]) -> Result<FlowCommand> {
    let usage = |why: String| Failure::error(ExitCode::IpUsage, why);
    match words {
        [] => Ok(FlowCommand::List(FlowFilter::default())),
        ["list" | "show", rest @ ..] => Ok(FlowCommand::List(filter(rest).map_err(usage)?)),
        ["delete" | "del"] => {
            Err(usage("delete is without a filter; flush deletes all flows".to_owned()))
        }
        ["delete" | "del", rest @ ..] => Ok(FlowCommand::Delete(filter(rest).map_err(usage)?)),
        ["flush"] => Ok(FlowCommand::Delete(FlowFilter::default())),
        ["events"] => Ok(FlowCommand::Events),
        ["stats"] => Ok(FlowCommand::Stats),
        words => Err(usage(format!(
            "\"{}\" is not a command of towpath conntrack: expected list [FILTER], delete FILTER, \
             flush, events or stats",
            words.join(" ")
        ))),
    }
}

fn filter(words: &[&str]) -> Result<FlowFilter, String> {
    let mut filter = FlowFilter::default();
    for pair in words.chunks(2) {
        let [key, value] = pair else { return Err(format!("{:?} is without its value", pair[0])) };
        let number = || value.parse().map_err(|_| format!("{value:?} is no port"));
        let prefix =
            || value.parse().map(Some).map_err(|_| format!("{value:?} is no address or prefix"));
        let word = || Word::try_from(*value).map(Some).map_err(|_| format!("{value:?} is no word"));
        match *key {
            "id" => {
                let id = value.parse().map_err(|_| format!("{value:?} is no number of a flow"))?;
                filter.id = Some(id);
            }
            "proto" => filter.proto = word()?,
            "state" => filter.state = word()?,
            "src" => filter.src = prefix()?,
            "dst" => filter.dst = prefix()?,
            "sport" => filter.sport = Some(number()?),
            "dport" => filter.dport = Some(number()?),
            key => {
                return Err(format!(
                    "unknown word {key:?}: expected id, proto, state, src, dst, sport or dport"
                ));
            }
        }
    }
    Ok(filter)
}

/// Formats a flow or a flow event as a line of text.
fn line(flow: &ShownFlow) -> String {
    let mut out = String::new();
    let event = flow.event.as_ref().map(|event| format!("{event:<8} ")).unwrap_or_default();
    let ends = |src, sport, dst, dport| {
        format!("{} > {}", SocketAddr::new(src, sport), SocketAddr::new(dst, dport))
    };
    let original = ends(flow.src, flow.sport, flow.dst, flow.dport);
    let translated = ends(flow.reply_dst, flow.reply_dport, flow.reply_src, flow.reply_sport);
    let translated = match translated == original {
        true => String::new(),
        false => format!(" as {translated}"),
    };
    // Ignore the result: writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{event}{:<5} {:<11} {original}{translated}  {} packets {} bytes, answers {} packets {} \
         bytes, {} s",
        flow.proto,
        flow.state,
        flow.packets,
        flow.bytes,
        flow.reply_packets,
        flow.reply_bytes,
        flow.expires_s
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_wrong_are_named() {
        let wrong = [
            ("lst", "\"lst\" is not a command"),
            ("delete", "flush deletes all flows"),
            ("list port 5", "unknown word \"port\""),
            ("list src", "\"src\" is without its value"),
            ("list src ten", "\"ten\" is no address or prefix"),
            ("delete dport 65536", "\"65536\" is no port"),
        ];
        for (text, wanted) in wrong {
            let words: Vec<_> = text.split_whitespace().collect();
            let error = parse(&words).err().expect(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_translated_flow_has_both_forms_in_its_line() {
        let addr = |text: &str| text.parse().unwrap();
        let mut flow = ShownFlow {
            id: 1,
            event: Some(Word::known("new")),
            proto: Word::known("udp"),
            state: Word::known("answered"),
            src: addr("10.1.0.2"),
            sport: 4000,
            dst: addr("198.51.100.7"),
            dport: 53,
            reply_src: addr("198.51.100.7"),
            reply_sport: 53,
            reply_dst: addr("192.0.2.2"),
            reply_dport: 30_000,
            packets: 1,
            bytes: 60,
            reply_packets: 2,
            reply_bytes: 90,
            expires_s: 299,
        };
        let wanted = "new      udp   answered    10.1.0.2:4000 > 198.51.100.7:53 as \
                      192.0.2.2:30000 > 198.51.100.7:53  1 packets 60 bytes, answers 2 packets 90 \
                      bytes, 299 s\n";
        assert_eq!(line(&flow), wanted);
        (flow.reply_dst, flow.reply_dport) = (flow.src, flow.sport);
        assert!(!line(&flow).contains(" as "));
    }
}
