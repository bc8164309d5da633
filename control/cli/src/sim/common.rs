//! Options that scenarios and examples have in common.

use clap::{Args, ValueHint};
use towpath_sim::Time;

use super::files::Output;

/// Options of scenarios and examples.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Seed of the run, or of the first of several runs (default: that of the scenario)
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// Format and file for the results, such as html=FILE or FILE.html
    ///
    /// html is a page with all charts, and svg a picture of the main charts. json contains
    /// everything. csv has a row with all figures for each run, and series a row for each value of
    /// each time series. text (FILE.txt) contains the tables.
    ///
    /// May be given several times. A format without a file is printed on standard output instead of
    /// the text; "-" prints json there. Files are opened before the first run.
    ///
    /// Time series have 400 samples. In a scenario with thousands of flows they have fewer, but at
    /// least ten, so that all series together have a million values. The scenario's key `sample`
    /// sets the time between two samples.
    #[arg(short, long, value_name = "[FORMAT=]FILE", value_hint = ValueHint::FilePath)]
    pub output: Vec<Output>,

    /// Lag above which a run in real time is invalid, 10ms unless given; the exit status is 5 then
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub max_lag: Option<Time>,

    /// Print nothing but the results and errors
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn time(text: &str) -> Result<Time, String> {
    Time::parse(text).ok_or_else(|| "expected a time with its unit, as 500ms".into())
}
