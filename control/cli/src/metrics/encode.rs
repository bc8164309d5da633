//! Writes metrics in the text format of Prometheus, version 0.0.4.

use std::fmt;

use anyhow::{Context, Result};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::families::{Families, MetricKind};

/// Value of the header `Content-Type` for the text.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Prefix of the names of all metrics.
const PREFIX: &str = "towpath";

/// Formats metrics as text.
///
/// # Errors
/// Fails if a label or a name cannot be encoded.
pub fn text(families: Families) -> Result<String> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(families));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).context("metrics as text")?;
    Ok(text)
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for ((name, is_bytes), family) in &self.0 {
            let unit = is_bytes.then_some(&Unit::Bytes);
            let kind = match family.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(name, &family.help, unit, kind)?;
            for (labels, value) in &family.samples {
                let mut sample = metric.encode_family(labels)?;
                match family.kind {
                    MetricKind::Counter => {
                        sample.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                    MetricKind::Gauge => sample.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use towpath_model::{Reply, RunKind, ShardSample};

    use super::super::check;
    use super::super::families::RunSample;
    use super::*;

    #[test]
    fn the_text_keeps_the_rules_of_prometheus() {
        let mut families = Families::default();
        for (pid, program) in [(7, "nginx"), (8, "a \"b\"\n\\c")] {
            let reply = Reply { pid, ..Reply::new(RunKind::Run, vec![program.to_owned()]) };
            let shards = vec![ShardSample { turns: 11, ..ShardSample::default() }];
            families.add_run(&RunSample { reply, shards, ..RunSample::default() });
        }
        families.add_silent_runs(2);
        let text = text(families).unwrap();
        let found = check::problems(&text);
        assert!(found.is_empty(), "{found:?}\n{text}");
        for line in [
            "# HELP towpath_runs_silent Runs that did not answer the latest request.".to_owned(),
            "# TYPE towpath_shard_turns_total counter".to_owned(),
            "towpath_shard_turns_total{run=\"7\",shard=\"0\"} 11".to_owned(),
            "towpath_runs_silent 2".to_owned(),
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.contains("program=\"a \\\"b\\\"\\n\\\\c\""), "{text}");
    }
}
