//! `towpath sim`: scenarios in virtual time.

mod args;
mod progress;

use std::num::NonZero;
use std::path::Path;

use anyhow::{Context, Result};
use towpath_sim::{BatchOptions, Report};

use crate::error::{ExitCode, Failure};
use crate::output;

pub use args::SimArgs;
use progress::Progress;

/// Runs the command.
pub fn sim(args: &SimArgs) -> Result<()> {
    let formats: Vec<(Format, &Path)> =
        args.output.iter().map(|path| Ok((Format::of(path)?, &**path))).collect::<Result<_>>()?;
    let name = args.scenario.display();
    let text = std::fs::read_to_string(&args.scenario).with_context(|| name.to_string())?;
    let plans = towpath_sim::read(&text)
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{name}: {error}")))?;
    let options = BatchOptions {
        seed: args.seed,
        runs: args.runs,
        captures: args.pcap.as_deref(),
        threads: std::thread::available_parallelism().map_or(1, NonZero::get),
    };
    let progress = Progress::start(args.quiet);
    let report = towpath_sim::run_all(&plans, options, &|share| progress.at(share));
    progress.end();
    let report = report.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    progress.tell_speed(&report);
    let mut has_table = true;
    for (format, path) in formats {
        let text = format.text(&report);
        if path.as_os_str() == "-" {
            has_table = false;
            output::write(text.as_bytes())?;
        } else {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
    }
    if has_table { output::write(towpath_sim::table(&report).as_bytes()) } else { Ok(()) }
}

/// Format of a file, by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Html,
    Json,
    Csv,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("html" | "htm") => Ok(Self::Html),
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            None if path.as_os_str() == "-" => Ok(Self::Json),
            _ => {
                let message = format!(
                    "--output {}: the name says no format; end it with .html, .json or .csv",
                    path.display()
                );
                Err(Failure::error(ExitCode::Usage, message))
            }
        }
    }

    fn text(self, report: &Report) -> String {
        match self {
            Self::Html => towpath_sim::html(report),
            Self::Json => towpath_sim::json(report),
            Self::Csv => towpath_sim::csv(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_known_by_the_end_of_the_name() {
        let of = |name: &str| Format::of(Path::new(name)).ok();
        assert_eq!(of("r.html"), Some(Format::Html));
        assert_eq!(of("a.b/r.json"), Some(Format::Json));
        assert_eq!(of("r.csv"), Some(Format::Csv));
        assert_eq!(of("-"), Some(Format::Json));
        assert_eq!([of("r"), of("r.png"), of(".html")], [None; 3]);
    }
}
