//! `towpath setting`: shows and changes the TCP settings of a running run or router.
//!
//! `answer` handles the requests in the process that has the stack.

mod answer;

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use towpath_model::{Error, TcpSetting, TcpSettingChange, Word};
use towpath_tcp::{TcpDefaultError, TcpDefaultRow, TcpDefaults};

use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};
use crate::output;

pub use answer::{change, shown};

/// Options of `towpath setting`.
#[derive(Debug, Args)]
pub struct SettingArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// list, get NAME, set NAME=VALUE
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub words: Vec<String>,
}

/// Text of `towpath setting --help` before the options.
pub const ABOUT: &str = "\
Show and change the TCP settings of a running run or router.

Settings have the names and values of --tcp of `towpath run` (docs/tcp-settings.md), and the names \
of Linux's sysctls. A change takes effect for new connections, also for those of existing \
listeners. Connections that exist keep their settings, and so do sockets whose program has set an \
option of its own, such as TCP_CONGESTION. Changes end with the run.

  list               all settings, each with its value
  get NAME...        the values of these settings, one in each line
  set NAME=VALUE...  new values; all of them, or none if one is invalid";

/// Text of `towpath setting --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath setting
  towpath setting --name web get congestion
  towpath setting set congestion=bbr ecn=on
  towpath setting set net.ipv4.tcp_sack=0
  towpath setting -j | jq -r '.[] | select(.name == \"ecn\").value'

Exit status:
  0  done
  1  words that are wrong, or no such run
  2  the run refused the change, or did not answer";

enum Command<'a> {
    /// Shows all settings.
    List,
    /// Shows the settings with these names.
    Get(Vec<&'static str>),
    /// Changes settings.
    Set(Vec<(&'static str, &'a str)>),
}

/// Runs `towpath setting`.
///
/// # Errors
/// Returns an error message for the user.
pub fn setting(args: &SettingArgs) -> Result<()> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let command = parse(&words).map_err(|why| Failure::error(ExitCode::IpUsage, why))?;
    if let Command::Set(pairs) = command {
        return set(args, &pairs);
    }
    let client = args.which.client_to_look().map_err(no_answer)?;
    let mut settings = client.settings().map_err(no_answer)?;
    if let Command::Get(names) = &command {
        let find = |name: &&str| settings.iter().find(|it| it.name.as_str() == *name).cloned();
        settings = names.iter().filter_map(find).collect();
    }
    match (args.json, command) {
        (true, _) => output::write_json(&(serde_json::to_string(&settings)? + "\n")),
        (false, Command::Get(_)) => {
            output::write_text(&settings.iter().map(|it| value(it) + "\n").collect::<String>())
        }
        (false, _) => output::write_text(&text(&settings)),
    }
}

fn set(args: &SettingArgs, pairs: &[(&'static str, &str)]) -> Result<()> {
    let change = |(name, value): &(&'static str, &str)| TcpSettingChange {
        name: Word::known(name),
        value: (*value).to_owned(),
    };
    let client = args.which.client().map_err(no_answer)?;
    match client.apply_settings(&pairs.iter().map(change).collect::<Vec<_>>()) {
        Ok(_) => Ok(()),
        Err(Error::Refused(fault)) if fault.code.as_str() == "refused" => {
            Err(Failure::error(ExitCode::Usage, format!("Error: {}", fault.message)))
        }
        Err(error) => Err(no_answer(error)),
    }
}

fn parse<'a>(words: &[&'a str]) -> Result<Command<'a>, String> {
    let known = |name: &str| TcpDefaultRow::find(name).map(|row| row.name);
    let explained = |error: TcpDefaultError| answer::explain(&error);
    match words {
        [] | ["list" | "show"] => Ok(Command::List),
        ["get", names @ ..] if !names.is_empty() => {
            let names = names.iter().map(|name| known(name)).collect::<Result<_, _>>();
            names.map(Command::Get).map_err(explained)
        }
        ["set", pairs @ ..] if !pairs.is_empty() => {
            let mut checked = TcpDefaults::default();
            let mut pair = |text: &&'a str| {
                let pair = text.split_once('=');
                let (name, value) =
                    pair.ok_or_else(|| TcpDefaultError::NoValue((*text).to_owned()))?;
                checked.set(name, value)?;
                Ok((known(name)?, value))
            };
            let pairs = pairs.iter().map(&mut pair).collect::<Result<_, _>>();
            pairs.map(Command::Set).map_err(explained)
        }
        words => Err(format!(
            "\"{}\" is not a command of towpath setting: expected list, get NAME or set NAME=VALUE",
            words.join(" ")
        )),
    }
}

/// Returns the value of a setting for users.
fn value(setting: &TcpSetting) -> String {
    setting.value.clone().unwrap_or_else(|| "random".to_owned())
}

/// Formats settings as text, with a line for each.
fn text(settings: &[TcpSetting]) -> String {
    let mut out = String::new();
    for setting in settings {
        // Ignore the result: writing to a String cannot fail.
        let _ = writeln!(out, "{} = {}", setting.name, value(setting));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_word_and_the_nearest_setting() {
        let wrong = [
            ("get sak", "unknown setting `sak`; did you mean `sack`?"),
            ("get tcp_ech", "unknown setting `tcp_ech`; did you mean `tcp_ecn`?"),
            ("get nonsense", "\"nonsense\" is not a setting of TCP: expected one of congestion"),
            ("set sack", "\"sack\" has no value: expected NAME=VALUE"),
            ("set sack=off ecn=maybe", "\"maybe\" is not a valid value of ecn: expected off, on"),
            ("get", "\"get\" is not a command of towpath setting: expected list, get NAME or"),
            ("delete sack", "\"delete sack\" is not a command"),
        ];
        for (line, wanted) in wrong {
            let words: Vec<_> = line.split_whitespace().collect();
            let error = parse(&words).err().expect(line);
            assert!(error.starts_with(wanted), "{line}: {error}");
        }
    }

    #[test]
    fn names_of_linux_are_translated() {
        let Ok(Command::Set(pairs)) = parse(&["set", "net.ipv4.tcp_sack=0", "ecn=on"]) else {
            panic!("two changes")
        };
        assert_eq!(pairs, [("sack", "0"), ("ecn", "on")]);
        let Ok(Command::Get(names)) = parse(&["get", "tcp_rmem[2]"]) else { panic!("a name") };
        assert_eq!(names, ["rmem-max"]);
    }
}
