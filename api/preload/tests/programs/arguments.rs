//! The command line: the part of libtest's that runners of tests use.

/// The command line of the tests.
#[derive(Debug)]
pub struct Arguments {
    /// Only to be named.
    pub list: bool,
    /// Cases that run at the same time.
    pub threads: usize,
    /// Names are given whole.
    exact: bool,
    /// Only tests that libtest would skip by default, of which there are none.
    ignored: bool,
    filters: Vec<String>,
    skipped: Vec<String>,
}

/// Cases at the same time unless something else is asked for: most of them sleep.
const THREADS: usize = 4;

impl Arguments {
    /// # Errors
    /// The first unknown word, and the known ones.
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
                // Lists have one format, and output of a case is always shown.
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
