//! Options of measurements with alternating rounds.

/// Duration and number of the rounds, and the output format.
#[derive(clap::Args)]
pub struct Rounds {
    /// Time of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub repeat: u64,
    /// Print everything as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}
