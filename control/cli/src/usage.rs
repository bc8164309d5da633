//! Extends clap's error messages about the command line.

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory};

use crate::args::Cli;

/// Adds to clap's error about an unknown option which commands support the option. Without this,
/// clap would advise to pass the option to PROGRAM.
pub fn name_owners(error: &mut clap::Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return };
    let option = given.split(['=', ' ']).next().unwrap_or_default().to_owned();
    let mut owners = Vec::new();
    find_owners(&Cli::command(), "towpath", &option, &mut owners);
    if error.kind() != clap::error::ErrorKind::UnknownArgument || owners.is_empty() {
        return;
    }
    let tip = format!("'{option}' is an option of {}", owners.join(", "));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
}

/// Collects the paths of all subcommands of `command` that support the option.
fn find_owners(command: &Command, path: &str, option: &str, owners: &mut Vec<String>) {
    for command in command.get_subcommands() {
        let path = format!("{path} {}", command.get_name());
        let has = command.get_arguments().any(|arg| {
            let long = arg.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long));
            let mut chars = option.chars().skip(1);
            let short = chars.next().filter(|_| chars.next().is_none());
            long || (short.is_some() && arg.get_short() == short)
        });
        if has {
            owners.push(format!("`{path}`"));
        }
        find_owners(command, &path, option, owners);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn message(words: &[&str]) -> String {
        let mut error = Cli::try_parse_from(words).expect_err("an error");
        name_owners(&mut error);
        error.to_string()
    }

    #[test]
    fn options_of_other_commands_are_named() {
        let netem = message(&["towpath", "proxy", "run", "--netem", "delay 50ms", "--", "true"]);
        assert!(netem.contains("'--netem' is an option of `towpath run`\n"), "{netem}");
        assert!(!netem.contains("as a value"), "{netem}");
        let route = message(&["towpath", "run", "--route", "10.0.0.0/8", "true"]);
        assert!(route.contains("`towpath proxy`, `towpath router`"), "{route}");
        assert!(message(&["towpath", "ss", "--netem=loss"]).contains("`towpath run`"));
        let unknown = message(&["towpath", "run", "--nothing-like-it", "true"]);
        assert!(!unknown.contains("is an option of"), "{unknown}");
        assert!(message(&["towpath", "run", "--pubish", "1:2", "x"]).contains("'--publish'"));
    }
}
