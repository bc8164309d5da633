//! Options of chores that measure contenders in alternating rounds.

/// Length and number of the rounds, and the form of the result.
#[derive(clap::Args)]
pub struct Rounds {
    /// Time of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub repeat: u64,
    /// Prints everything as JSON, and no table.
    #[arg(long)]
    pub json: bool,
}
