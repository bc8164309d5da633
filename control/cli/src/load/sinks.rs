//! Writes the results to standard output and to files. Files are opened before the first run, so
//! that errors are reported early.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use towpath_load::results::outcome::Document;
use towpath_load::results::values::{Output, ResultFormat};
use towpath_load::results::{page, tables, text};

use crate::error::{ExitCode, Failure};

/// Outputs for the results, in the order of the options.
pub struct Sinks(Vec<Sink>);

struct Sink {
    format: ResultFormat,
    /// Open file with its path; `None` for standard output.
    file: Option<(File, PathBuf)>,
}

impl Sinks {
    /// Opens the output files. Existing content is kept until the results are written.
    ///
    /// # Errors
    /// Returns the first file that cannot be opened for writing, before any run starts.
    pub fn open(outputs: Vec<Output>) -> Result<Self> {
        let open = |Output { format, file }: Output| {
            let Some(path) = file else { return Ok(Sink { format, file: None }) };
            let options = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = options.map_err(|error| cannot_write(&path, &error))?;
            Ok(Sink { format, file: Some((file, path)) })
        };
        outputs.into_iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Writes the results to all outputs.
    ///
    /// # Errors
    /// Returns an error about the first output that cannot be written.
    pub fn write(self, document: &Document) -> Result<()> {
        // Continue after an error, so that a full disk does not prevent text on standard output.
        let results: Vec<_> = self.0.into_iter().map(|sink| sink.write(document)).collect();
        results.into_iter().collect()
    }
}

impl Sink {
    fn write(self, document: &Document) -> Result<()> {
        let text = match self.format {
            ResultFormat::Text => text::of(document),
            ResultFormat::Json => tables::json(document)?,
            ResultFormat::Csv => tables::csv(document),
            ResultFormat::Series => tables::series(document),
            ResultFormat::Html => page::of(document),
        };
        match self.file {
            None => crate::output::write(text.as_bytes()),
            Some((file, path)) => replace(file, &text).map_err(|error| cannot_write(&path, &error)),
        }
    }
}

/// Replaces the content of an open file by the text.
fn replace(mut file: File, text: &str) -> std::io::Result<()> {
    // Truncate only regular files, because devices and pipes cannot be truncated.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

fn cannot_write(path: &std::path::Path, error: &std::io::Error) -> anyhow::Error {
    Failure::error(ExitCode::Failed, format!("-o: cannot write {}: {error}", path.display()))
}
