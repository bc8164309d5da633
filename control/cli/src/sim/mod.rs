//! `towpath sim`: scenarios in virtual time, and examples.

mod args;
mod examples;
mod progress;

use std::num::NonZero;
use std::path::Path;

use anyhow::{Context, Result};
use towpath_sim::{BatchOptions, ExampleReport, Report};

use crate::error::{ExitCode, Failure};
use crate::output;

use args::CommonArgs;
pub use args::SimArgs;
use examples::ExampleCommand;
use progress::Progress;

/// Runs the command.
pub fn sim(args: &SimArgs) -> Result<()> {
    match (&args.example, &args.scenario) {
        (Some(example), _) => run_example(example),
        (None, Some(scenario)) => run_scenario(args, scenario),
        (None, None) => {
            Err(Failure::error(ExitCode::Usage, "sim needs a scenario or an example".to_owned()))
        }
    }
}

fn run_scenario(args: &SimArgs, scenario: &Path) -> Result<()> {
    let files = Files::of(&args.common)?;
    let name = scenario.display();
    let text = std::fs::read_to_string(scenario)
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{name}: {error}")))?;
    let plans = towpath_sim::read(&text)
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{name}: {error}")))?;
    let options = BatchOptions {
        seed: args.common.seed,
        runs: args.runs,
        captures: args.pcap.as_deref(),
        traces: files.has_page(),
        threads: threads(),
    };
    let progress = Progress::start(args.common.quiet);
    let report = towpath_sim::run_all(&plans, options, &|share| progress.at(share));
    progress.end();
    let report = report.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    progress.tell_speed(&report);
    files.write(&report)
}

fn run_example(command: &ExampleCommand) -> Result<()> {
    let (card, example) = (command.card(), command.example()?);
    if card.scenario {
        let none = "send --mode write has no network, and so no scenario".to_owned();
        let text = example.scenario.ok_or_else(|| Failure::error(ExitCode::Usage, none))?;
        return output::write(text.as_bytes());
    }
    let files = Files::of(&card.common)?;
    let progress = Progress::start(card.common.quiet);
    let report = example.run(card.common.seed, threads(), &|share| progress.at(share));
    progress.end();
    let report = report.map_err(|error| anyhow::anyhow!("sim {}: {error}", example.name))?;
    progress.tell_speed(&report.report);
    files.write(&report)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Results in all formats.
trait Results {
    fn text(&self) -> String;
    fn html(&self) -> String;
    fn svg(&self) -> String;
    fn json(&self) -> String;
    fn csv(&self) -> String;
}

impl Results for Report {
    fn text(&self) -> String {
        towpath_sim::table(self)
    }

    fn html(&self) -> String {
        towpath_sim::html(self)
    }

    fn svg(&self) -> String {
        towpath_sim::svg(self)
    }

    fn json(&self) -> String {
        towpath_sim::json(self)
    }

    fn csv(&self) -> String {
        towpath_sim::csv(self)
    }
}

impl Results for ExampleReport {
    fn text(&self) -> String {
        towpath_sim::text(self)
    }

    fn html(&self) -> String {
        ExampleReport::html(self)
    }

    fn svg(&self) -> String {
        towpath_sim::svg(&self.report)
    }

    fn json(&self) -> String {
        ExampleReport::json(self)
    }

    fn csv(&self) -> String {
        ExampleReport::csv(self)
    }
}

/// Files that `--output` names, with their formats.
struct Files<'a>(Vec<(Format, &'a Path)>);

impl<'a> Files<'a> {
    fn of(args: &'a CommonArgs) -> Result<Self> {
        let files = args.output.iter().map(|path| Ok((Format::of(path)?, &**path)));
        Ok(Self(files.collect::<Result<_>>()?))
    }

    /// Whether a page with charts is among them.
    fn has_page(&self) -> bool {
        self.0.iter().any(|(format, _)| *format == Format::Html)
    }

    /// Writes all files, and the text to standard output unless a file is there.
    fn write(&self, results: &impl Results) -> Result<()> {
        let mut has_text = true;
        for (format, path) in &self.0 {
            let text = format.of_results(results);
            if path.as_os_str() == "-" {
                has_text = false;
                output::write(text.as_bytes())?;
            } else {
                std::fs::write(path, text).with_context(|| path.display().to_string())?;
            }
        }
        if has_text { output::write(results.text().as_bytes()) } else { Ok(()) }
    }
}

/// Format of a file, by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Html,
    Svg,
    Json,
    Csv,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("txt") => Ok(Self::Text),
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            None if path.as_os_str() == "-" => Ok(Self::Json),
            _ => {
                let message = format!(
                    "--output {}: the name says no format; end it with .html, .svg, .json, .csv \
                     or .txt",
                    path.display()
                );
                Err(Failure::error(ExitCode::Usage, message))
            }
        }
    }

    fn of_results(self, results: &impl Results) -> String {
        match self {
            Self::Text => results.text(),
            Self::Html => results.html(),
            Self::Svg => results.svg(),
            Self::Json => results.json(),
            Self::Csv => results.csv(),
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
        assert_eq!(of("r.svg"), Some(Format::Svg));
        assert_eq!(of("r.csv"), Some(Format::Csv));
        assert_eq!(of("r.txt"), Some(Format::Text));
        assert_eq!(of("-"), Some(Format::Json));
        assert_eq!([of("r"), of("r.png"), of(".html")], [None; 3]);
    }
}
