//! Writes the results to standard output and to files. Files are opened before the first run, so
//! that errors are reported early.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;
use towpath_sim::{ExampleReport, Report};

use crate::error::{ExitCode, Failure};
use crate::output;

/// Results of a simulation that can be formatted in all output formats.
pub trait Results {
    fn text(&self) -> String;
    fn html(&self) -> String;
    fn svg(&self) -> String;
    fn json(&self) -> String;
    fn csv(&self) -> String;
    fn series(&self) -> String;
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

    fn series(&self) -> String {
        towpath_sim::series(self)
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

    fn series(&self) -> String {
        ExampleReport::series(self)
    }
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Tables for people (`text`).
    Text,
    /// HTML page with charts.
    Html,
    /// SVG picture with the main charts.
    Svg,
    /// JSON document with all results.
    Json,
    /// CSV table with a row for each run.
    Csv,
    /// CSV table with a row for each value of each series.
    Series,
}

/// Value of `-o`: a format, and the file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    format: FileFormat,
    /// File to write; `None` for standard output.
    file: Option<PathBuf>,
}

/// Opened output files, each with its format and path.
pub struct Files(Vec<(FileFormat, Option<(File, PathBuf)>)>);

impl Files {
    /// Opens the output files. Existing content is kept until the results are written.
    ///
    /// # Errors
    /// Fails if a file cannot be opened for writing, or if two formats are requested for standard
    /// output.
    pub fn open(outputs: &[Output]) -> Result<Self> {
        if outputs.iter().filter(|output| output.file.is_none()).count() > 1 {
            let message =
                "-o: two formats for standard output would mix; give one a file, as -o html=FILE";
            return Err(Failure::error(ExitCode::Usage, message.to_owned()));
        }
        let open = |output: &Output| {
            let Output { format, file } = output;
            let Some(path) = file else { return Ok((*format, None)) };
            let options = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            let file = options.map_err(|error| cannot_write(path, &error))?;
            Ok((*format, Some((file, path.clone()))))
        };
        outputs.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Returns whether an HTML page with charts is requested.
    pub fn has_page(&self) -> bool {
        self.0.iter().any(|(format, _)| *format == FileFormat::Html)
    }

    /// Writes the results to all files. Writes them as text to standard output, unless another
    /// format is written there.
    ///
    /// # Errors
    /// Returns an error about the first file that cannot be written. The remaining files are still
    /// written.
    pub fn write(self, results: &impl Results) -> Result<()> {
        let has_text = self.0.iter().all(|(_, file)| file.is_some());
        let mut written: Vec<Result<()>> = Vec::new();
        for (format, file) in self.0 {
            let text = format.of(results);
            written.push(match file {
                None => output::write(text.as_bytes()),
                Some((file, path)) => {
                    replace(file, &text).map_err(|error| cannot_write(&path, &error))
                }
            });
        }
        if has_text {
            written.push(output::write(results.text().as_bytes()));
        }
        written.into_iter().collect()
    }
}

/// Replaces the content of an open file by the text.
fn replace(mut file: File, text: &str) -> io::Result<()> {
    // Truncate only regular files, because devices and pipes cannot be truncated.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    Failure::error(ExitCode::Failed, format!("-o: cannot write {}: {error}", path.display()))
}

impl FileFormat {
    /// Returns the output format with this name, such as "html".
    fn named(name: &str) -> Option<Self> {
        match name {
            "text" | "txt" => Some(Self::Text),
            "html" | "htm" => Some(Self::Html),
            "svg" => Some(Self::Svg),
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "series" => Some(Self::Series),
            _ => None,
        }
    }

    fn of(self, results: &impl Results) -> String {
        match self {
            Self::Text => results.text(),
            Self::Html => results.html(),
            Self::Svg => results.svg(),
            Self::Json => results.json(),
            Self::Csv => results.csv(),
            Self::Series => results.series(),
        }
    }
}

impl FromStr for Output {
    type Err = String;

    /// Parses "html=FILE", or a format name alone for standard output, or a file name whose
    /// extension determines the format.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" {
            return Ok(Self { format: FileFormat::Json, file: None });
        }
        if let Some(format) = FileFormat::named(text) {
            return Ok(Self { format, file: None });
        }
        if let Some((name, file)) = text.split_once('=')
            && let Some(format) = FileFormat::named(name)
        {
            return match file {
                "" => Err(format!("\"{text}\" names no file behind the =")),
                file => Ok(Self { format, file: Some(file.into()) }),
            };
        }
        let end = Path::new(text).extension().and_then(|end| end.to_str());
        match end.and_then(FileFormat::named) {
            Some(format) => Ok(Self { format, file: Some(text.into()) }),
            None => {
                Err("the name says no format; end it with .html, .svg, .json, .csv or .txt, or \
                         put one in front, as html=FILE or series=FILE"
                    .to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_stands_in_front_of_the_file_or_at_its_end() {
        let of =
            |text: &str| text.parse::<Output>().ok().map(|output| (output.format, output.file));
        let file = |name: &str| Some(PathBuf::from(name));
        assert_eq!(of("html=r"), Some((FileFormat::Html, file("r"))));
        assert_eq!(of("series=a=b.csv"), Some((FileFormat::Series, file("a=b.csv"))));
        assert_eq!(of("r.html"), Some((FileFormat::Html, file("r.html"))));
        assert_eq!(of("a.b/x=r.json"), Some((FileFormat::Json, file("a.b/x=r.json"))));
        assert_eq!(of("r.svg"), Some((FileFormat::Svg, file("r.svg"))));
        assert_eq!(of("r.csv"), Some((FileFormat::Csv, file("r.csv"))));
        assert_eq!(of("r.txt"), Some((FileFormat::Text, file("r.txt"))));
        assert_eq!(
            [of("-"), of("json")],
            [Some((FileFormat::Json, None)), Some((FileFormat::Json, None))]
        );
        assert_eq!([of("r"), of("r.png"), of(".html"), of("csv="), of("")], [const { None }; 5]);
    }
}
