//! Formats the counters that are printed when a run ends (`--stats`).

use std::fmt::Write;

use anyhow::Result;
use towpath_uplink::Layer;

use crate::args::StatsFormat;
use crate::child::Ended;

/// Returns the message that counters are missing. With `--inline`, the counters are in PROGRAM's
/// process, which reports them only when it calls exit(3).
pub fn missing(program: &str, ended: Ended) -> String {
    let how = match ended {
        Ended::Killed(signal) => format!("signal {signal} ended {program}"),
        Ended::Exited(_) => format!("{program} ended without exit(3), or executed another program"),
    };
    format!("no counters: {how}, and with it the stack in its process")
}

/// Formats the counters. JSON contains all counters, text only those that are not zero.
pub fn render(format: StatsFormat, layers: &[Layer]) -> Result<String> {
    match format {
        StatsFormat::Json => json(layers),
        StatsFormat::Text => Ok(text(layers)),
    }
}

fn json(layers: &[Layer]) -> Result<String> {
    let layers = layers.iter().map(|layer| {
        let values = layer.counters.iter().map(|(name, value)| (name.clone(), (*value).into()));
        (layer.name.clone(), serde_json::Value::Object(values.collect()))
    });
    Ok(serde_json::to_string(&serde_json::Value::Object(layers.collect()))? + "\n")
}

fn text(layers: &[Layer]) -> String {
    let mut out = String::new();
    for layer in layers {
        for (name, value) in layer.counters.iter().filter(|(_, value)| *value > 0) {
            // Ignore errors: writing to a String cannot fail.
            let _ = writeln!(out, "{:<40} {value:>12}", format!("{}.{name}", layer.name));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_engine::Counters;

    fn counters() -> Vec<Layer> {
        let counters =
            Counters { engine: vec![("turns", 3), ("sleeps", 0)], ..Counters::default() };
        towpath_uplink::layers(&counters, &vec![("tap", vec![("rx_frames", 7)])])
    }

    #[test]
    fn text_leaves_zeros_out() {
        let text = render(StatsFormat::Text, &counters()).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(words, ["engine.turns", "3", "tap.rx_frames", "7"]);
    }

    #[test]
    fn json_has_everything() {
        let text = render(StatsFormat::Json, &counters()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["engine"], serde_json::json!({"turns": 3, "sleeps": 0}));
        assert_eq!(value["tap"]["rx_frames"], 7);
        assert_eq!(text.lines().count(), 1);
    }
}
