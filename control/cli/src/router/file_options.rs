//! Command-line options that a configuration file may set as well. Options of the command itself,
//! such as `--help`, are excluded. So are options whose key in the file has another form.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use towpath_config::{FileOption, FileOptionKind, KEYS, unknown};

use super::args::RouterArgs;
use crate::error::{ExitCode, Failure};

/// Options about the command itself, which files do not have.
const OF_COMMAND: &[&str] = &["config", "check", "help", "version"];

/// Values of options by their names.
pub type OptionValues = BTreeMap<String, Vec<String>>;

/// Returns the options that a file may have.
pub fn file_options() -> Vec<FileOption> {
    let option = |arg: &Arg| {
        let name = name_of_files(arg)?.to_owned();
        let of_check = name.clone();
        let check = Box::new(move |word: &str| check(&of_check, word));
        Some(FileOption { kind: kind(arg), name, check })
    };
    command().get_arguments().filter_map(option).collect()
}

/// Returns whether the value of an option is an array in a file.
pub fn is_list(name: &str) -> bool {
    let command = command();
    let mut args = command.get_arguments();
    args.any(|arg| arg.get_long() == Some(name) && kind(arg) == FileOptionKind::List)
}

/// Returns the options that a command line gives and a file may have. `line` starts with the name
/// of the command.
///
/// # Errors
/// Fails if the command line is invalid.
pub fn given(line: impl Iterator<Item = OsString>) -> Result<OptionValues> {
    let matches = command().try_get_matches_from(line)?;
    let command = command();
    let value = |arg: &Arg| Some((name_of_files(arg)?.to_owned(), words(&matches, arg)?));
    Ok(command.get_arguments().filter_map(value).collect())
}

/// Returns the command-line options of a router that reads `file`, with `values` in addition.
///
/// # Errors
/// Fails if the options contradict each other.
pub fn with_values(file: &Path, is_check: bool, values: &OptionValues) -> Result<RouterArgs> {
    let mut line: Vec<OsString> = vec!["router".into(), "--config".into(), file.into()];
    line.extend(is_check.then(|| "--check".into()));
    for (name, words) in values {
        match words.is_empty() {
            true => line.push(format!("--{name}").into()),
            false => line.extend(words.iter().map(|word| format!("--{name}={word}").into())),
        }
    }
    let wrong = |error: clap::Error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::error(ExitCode::Usage, format!("{}: {first}", file.display()))
    };
    let matches = command().try_get_matches_from(line).map_err(wrong)?;
    RouterArgs::from_arg_matches(&matches).map_err(wrong)
}

fn command() -> Command {
    RouterArgs::augment_args(Command::new("router"))
}

/// Returns the name of an option that a file may have.
fn name_of_files(arg: &Arg) -> Option<&str> {
    let is_other =
        |name: &&str| OF_COMMAND.contains(name) || KEYS.iter().any(|key| key.option == Some(*name));
    arg.get_long().filter(|name| !is_other(name))
}

fn kind(arg: &Arg) -> FileOptionKind {
    match arg.get_action() {
        ArgAction::SetTrue => FileOptionKind::Flag,
        ArgAction::Append => FileOptionKind::List,
        _ => FileOptionKind::Value,
    }
}

/// Returns the values of an option on the command line. `None` if the option is not given there.
fn words(matches: &ArgMatches, arg: &Arg) -> Option<Vec<String>> {
    let id = arg.get_id().as_str();
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return None;
    }
    if kind(arg) == FileOptionKind::Flag {
        return Some(Vec::new());
    }
    let words = matches.get_raw(id)?;
    Some(words.map(|word| word.to_string_lossy().into_owned()).collect())
}

/// Validates the value of an option, without checking its relation to other options.
fn check(name: &str, word: &str) -> Result<(), String> {
    let option = format!("--{name}={word}");
    let Err(error) = command().try_get_matches_from(["router", "--config=FILE", &option]) else {
        return Ok(());
    };
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidUtf8 => {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            Err(why.unwrap_or_else(|| format!("{word:?} is not valid")))
        }
        ErrorKind::InvalidValue => {
            let valid = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(valid)) => valid.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            };
            Err(unknown("value", word, &valid))
        }
        // Ignore other errors: the option may require another option, which the file or the command
        // line contains.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_of_the_command_line_has_a_key() {
        let command = command();
        let of_files: Vec<_> = file_options().into_iter().map(|option| option.name).collect();
        for arg in command.get_arguments() {
            let name = arg.get_long().expect("every option has a long name");
            let has_key = of_files.iter().any(|known| known == name)
                || KEYS.iter().any(|key| key.option == Some(name));
            assert!(has_key != OF_COMMAND.contains(&name), "{name}");
        }
        for option in KEYS.iter().filter_map(|key| key.option) {
            let is_it = |arg: &Arg| arg.get_long() == Some(option);
            assert!(command.get_arguments().any(is_it), "there is no option --{option}");
        }
        for expected in ["name", "shards", "source-check", "pcap-size", "quiet", "stats"] {
            assert!(of_files.iter().any(|name| name == expected), "{expected}");
        }
    }

    /// Returns the keys that a section of the documentation lists.
    fn documented(title: &str) -> Vec<&'static str> {
        const PAGE: &str = include_str!("../../../../docs/config.md");
        let (_, rest) = PAGE.split_once(&format!("\n## {title}\n")).expect(title);
        let section = rest.split("\n## ").next().unwrap_or_default();
        let keys = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        keys.collect()
    }

    #[test]
    fn each_key_is_documented() {
        for (title, table) in [
            ("Keys at the top of the file", ""),
            ("Ports", "port"),
            ("DHCP clients", "dhcp"),
            ("DHCP servers", "dhcp-server"),
            ("Router advertisements", "ra"),
            ("DNS", "dns"),
            ("NAT64", "nat64"),
        ] {
            let keys = KEYS.iter().filter(|key| key.table == table).map(|key| key.name);
            assert_eq!(documented(title), keys.collect::<Vec<_>>());
        }
        let mut options = documented("Options in the file");
        options.sort_unstable();
        let mut of_files: Vec<_> = file_options().into_iter().map(|option| option.name).collect();
        of_files.sort_unstable();
        assert_eq!(options, of_files);
    }

    #[test]
    fn each_option_of_a_file_is_checked() {
        let wrong = [
            ("source-check", "strikt", "unknown value `strikt`; did you mean `strict`?"),
            ("neighbors", "0", "expected a number of neighbours from 1 to 16000"),
            ("name", "of fice", ""),
            ("shards", "3", ""),
            ("pcap-size", "much", ""),
            ("stats", "xml", "unknown value `xml`; expected one of text, json"),
        ];
        for (name, word, expected) in wrong {
            let why = check(name, word).expect_err(name);
            assert!(why.contains(expected), "{name}: {why}");
        }
        for (name, word) in [("pcap-snaplen", "128"), ("shards", "auto"), ("flows", "64")] {
            assert_eq!(check(name, word), Ok(()), "{name}");
        }
    }

    #[test]
    fn values_of_a_line_are_those_of_a_file() {
        let line = ["router", "--config=f", "--stats", "-q", "--busy-poll", "50"];
        let values = given(line.into_iter().map(OsString::from)).unwrap();
        let value = |name: &str| values.get(name).map(|words| words.join(" "));
        assert_eq!(value("stats").as_deref(), Some("text"));
        assert_eq!(value("quiet").as_deref(), Some(""));
        assert_eq!((value("busy-poll").as_deref(), value("shards")), (Some("50"), None));
        let args = with_values(Path::new("f"), true, &values).unwrap();
        assert!(args.check && args.quiet && args.busy_poll == 50 && args.stats.is_some());
        let alone = OptionValues::from([("pcap-size".to_owned(), vec!["1M".to_owned()])]);
        let error = with_values(Path::new("f"), true, &alone).unwrap_err().to_string();
        assert!(error.starts_with("f: ") && error.contains("required"), "{error}");
    }
}
