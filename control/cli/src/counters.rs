//! `towpath stats`: prints the counters of a running stack, once or periodically.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};
use towpath_model::{Client, Error, Interface, Layer};

use crate::args::parse_seconds;
use crate::error::{ExitCode, Failure};
use crate::ip::WhichRun;
use crate::output;

#[derive(Debug, Args)]
pub struct StatsArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON, one document per line
    #[arg(short, long)]
    pub json: bool,
    /// Print the counters of each period of this length, until Ctrl-C or the end of the run
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub watch: Option<Duration>,
}

/// Counters with names of the form `layer.name`, in the order of the run's response.
type Counted = Vec<(String, u64)>;

/// Runs `towpath stats`.
pub fn stats(args: &StatsArgs) -> Result<()> {
    let client = args.which.client_to_look().map_err(failure)?;
    let mut before = counted(&client).map_err(failure)?;
    let Some(period) = args.watch else { return print(&before, args.json, false) };
    if period.is_zero() {
        let message = "--watch 0: the period has to be a second or more";
        return Err(Failure::error(ExitCode::Usage, message));
    }
    loop {
        std::thread::sleep(period);
        let now = match counted(&client) {
            Ok(now) => now,
            // The run has ended.
            Err(Error::NoRun(_)) => return Ok(()),
            Err(error) => return Err(failure(error)),
        };
        let change = now.iter().map(|(name, value)| {
            let old = before.iter().find(|(known, _)| known == name).map_or(0, |(_, old)| *old);
            (name.clone(), value.saturating_sub(old))
        });
        print(&change.collect(), args.json, true)?;
        before = now;
    }
}

fn failure(error: Error) -> anyhow::Error {
    let text = match &error {
        Error::Refused(fault) => format!("the run {}", fault.message),
        error => error.to_string(),
    };
    Failure::error(ExitCode::Usage, text)
}

/// Queries the counters of all layers, followed by the counters of each interface.
fn counted(client: &Client) -> Result<Counted, Error> {
    let layers = client.counters()?;
    let of_layers = layers.iter().flat_map(|Layer { name, counters }| {
        counters.iter().map(move |(counter, value)| (format!("{name}.{counter}"), *value))
    });
    let interfaces = client.net()?.interfaces;
    Ok(of_layers.chain(interfaces.iter().flat_map(of_interface)).collect())
}

fn of_interface(interface: &Interface) -> Counted {
    let traffic = interface.traffic;
    let counters = [
        ("rx_packets", traffic.rx_packets),
        ("rx_bytes", traffic.rx_bytes),
        ("rx_dropped", traffic.rx_dropped),
        ("tx_packets", traffic.tx_packets),
        ("tx_bytes", traffic.tx_bytes),
        ("tx_dropped", traffic.tx_dropped),
    ];
    let named = |(name, value)| (format!("interface {}.{name}", interface.name), value);
    counters.into_iter().map(named).collect()
}

/// Prints the counters. The JSON format includes all counters, the text format only those that are
/// not zero.
fn print(counted: &Counted, json: bool, periods: bool) -> Result<()> {
    match json {
        true => output::write_json(&document(counted)?),
        false => output::write_text(&list(counted, periods)),
    }
}

fn document(counted: &Counted) -> Result<String> {
    let mut layers = Map::new();
    for (name, value) in counted {
        let (layer, counter) = name.split_once('.').unwrap_or(("", name));
        let layer = layers.entry(layer).or_insert_with(|| Value::Object(Map::new()));
        if let Some(layer) = layer.as_object_mut() {
            layer.insert(counter.to_owned(), (*value).into());
        }
    }
    Ok(serde_json::to_string(&Value::Object(layers))? + "\n")
}

fn list(counted: &Counted, periods: bool) -> String {
    let mut out = String::new();
    for (name, value) in counted.iter().filter(|(_, value)| *value > 0) {
        // Ignore the result: writing to a String cannot fail.
        let _ = writeln!(out, "{name:<40} {value:>12}");
    }
    if periods {
        out.push('\n');
    }
    out
}

/// Prints the counters of one layer, or `absent` if the run does not have it.
pub fn print_layer(layers: &[Layer], name: &str, absent: &str, json: bool) -> Result<()> {
    let layer = layers.iter().find(|layer| layer.name.as_str() == name);
    let counters = layer.map(|layer| &layer.counters[..]).unwrap_or_default();
    if json {
        let named = counters.iter().map(|(name, value)| (name.to_string(), Value::from(*value)));
        let all: Map<String, Value> = named.collect();
        return output::write_json(&(serde_json::to_string(&Value::Object(all))? + "\n"));
    }
    if counters.is_empty() {
        return output::write_text(&format!("{absent}\n"));
    }
    let mut out = String::new();
    for (name, value) in counters {
        // Ignore the result: writing to a String cannot fail.
        let _ = writeln!(out, "{name:<28} {value:>12}");
    }
    output::write_text(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_for_programs() {
        let counted = vec![("net.sent".to_owned(), 3), ("interface lo.rx_bytes".to_owned(), 0)];
        assert_eq!(list(&counted, false).split_whitespace().collect::<Vec<_>>(), ["net.sent", "3"]);
        let value: Value = serde_json::from_str(&document(&counted).unwrap()).unwrap();
        assert_eq!(value["net"]["sent"], 3);
        assert_eq!(value["interface lo"]["rx_bytes"], 0);
    }
}
