//! Parses the part of libtest's command line that test runners use.

/// Options and filters of the command line.
#[derive(Debug)]
pub struct Arguments {
    /// Whether to list the tests instead of running them.
    pub list: bool,
    /// Maximum number of cases that run concurrently.
    pub threads: usize,
    /// Whether filters match whole names only.
    exact: bool,
    /// Whether to run only ignored tests, of which there are none.
    ignored: bool,
    filters: Vec<String>,
    skipped: Vec<String>,
}

/// Default number of concurrent cases; most cases sleep most of the time.
const THREADS: usize = 4;

impl Arguments {
    /// # Errors
    /// Returns a message with the first unknown option, and the known options.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut found = Self {
            list: false,
            threads: THREADS,
            exact: false,
            ignored: false,
            filters: Vec::new(),
            skipped: Vec::new(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || {
                joined
                    .clone()
                    .or_else(|| words.next())
                    .ok_or(format!("{name}: its value is missing"))
            };
            match name {
                "--list" => found.list = true,
                "--exact" => found.exact = true,
                "--ignored" => found.ignored = true,
                "--skip" => found.skipped.push(value()?),
                "--test-threads" => {
                    let value = value()?;
                    let threads = value.parse().ok().filter(|&threads| threads > 0);
                    found.threads =
                        threads.ok_or(format!("--test-threads {value}: not a number from 1 on"))?;
                }
                // Ignored, because lists have one format and the output of a case is always shown.
                "--format" | "--color" => drop(value()?),
                "--include-ignored" | "--nocapture" | "--no-capture" | "--show-output"
                | "--quiet" | "-q" | "--test" => {}
                _ if name.starts_with('-') => {
                    return Err(format!(
                        "{word}: not an option; known are --list, --exact, --skip PART, \
                         --test-threads N and parts of names"
                    ));
                }
                _ => found.filters.push(word),
            }
        }
        Ok(found)
    }

    /// Whether a test is selected.
    pub fn wants(&self, name: &str) -> bool {
        let is_meant =
            |part: &String| if self.exact { name == part } else { name.contains(part.as_str()) };
        let is_wanted = self.filters.is_empty() || self.filters.iter().any(is_meant);
        is_wanted && !self.ignored && !self.skipped.iter().any(is_meant)
    }
}
