//! Implements `--on`: runs the load tester itself as the program of `towpath run`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use towpath_load::results::values::Place;

use super::args::LoadArgs;

/// Hidden option that the restarted tester gets. Its value is the stack that the tester uses.
const INSIDE: &str = "--inside";

/// Returns whether the tester must be restarted under `towpath run`, because its sockets are to be
/// on a Towpath stack.
pub fn is_elsewhere(args: &LoadArgs) -> bool {
    args.on != Place::Kernel && args.inside.is_none()
}

/// Executes `towpath run`, which starts this command again on its stack.
///
/// # Errors
/// Returns the error if the kernel cannot execute this program.
pub fn restart(args: &LoadArgs) -> Result<u8> {
    let own = std::env::current_exe().context("the path of towpath itself")?;
    let words = command(args, own.as_os_str(), std::env::args_os().skip(1));
    let error = Command::new(&own).args(words).exec();
    Err(error).with_context(|| format!("cannot execute {}", own.display()))
}

/// Returns arguments for `towpath run` with which it starts this command, given its own arguments.
fn command(
    args: &LoadArgs,
    own: &std::ffi::OsStr,
    words: impl Iterator<Item = OsString>,
) -> Vec<OsString> {
    let mut run: Vec<OsString> = vec!["run".into(), "--quiet".into()];
    match &args.on {
        Place::Kernel | Place::Rootless => {}
        Place::Tap(None) => run.push("--tap".into()),
        Place::Tap(Some(name)) => run.push(format!("--tap={name}").into()),
    }
    run.extend(["--".into(), own.to_owned()]);
    run.extend(words);
    run.extend([INSIDE.into(), args.on.word().into()]);
    run
}

/// Returns the command-line arguments as the user gave them.
pub fn argv() -> Vec<String> {
    as_given(std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect())
}

/// Removes the option that [`restart`] has added to the arguments.
fn as_given(mut words: Vec<String>) -> Vec<String> {
    if let [.., option, _] = &words[..]
        && option == INSIDE
    {
        words.truncate(words.len() - 2);
    }
    if let Some(first) = words.first_mut() {
        "towpath".clone_into(first);
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn restarted(words: &[&str]) -> Vec<String> {
        let cli = Cli::try_parse_from(["towpath"].iter().chain(words)).expect("it is parsed");
        let crate::args::Command::Load(args) = cli.command else { unreachable!("load was given") };
        assert!(is_elsewhere(&args));
        let words = command(&args, "/bin/towpath".as_ref(), words.iter().map(OsString::from));
        words.into_iter().map(|word| word.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn the_tester_starts_again_as_the_program_of_a_run() {
        let words = restarted(&["load", "--on", "tap=t0", "--users", "5"]);
        let wanted = "run --quiet --tap=t0 -- /bin/towpath load --on tap=t0 --users 5 --inside tap";
        assert_eq!(words.join(" "), wanted);
        let words = restarted(&["load", "--on", "rootless"]);
        let wanted = "run --quiet -- /bin/towpath load --on rootless --inside rootless";
        assert_eq!(words.join(" "), wanted);
    }

    #[test]
    fn a_tester_that_was_started_so_is_where_it_should_be() {
        let words = ["towpath", "load", "--on", "tap", "--inside", "tap"];
        let cli = Cli::try_parse_from(words).expect("it is parsed");
        let crate::args::Command::Load(args) = cli.command else { unreachable!("load was given") };
        assert!(!is_elsewhere(&args));
        let words = words.iter().map(ToString::to_string).collect();
        assert_eq!(as_given(words), ["towpath", "load", "--on", "tap"]);
        let own = vec!["/proc/self/exe".to_owned(), "load".to_owned()];
        assert_eq!(as_given(own), ["towpath", "load"]);
    }
}
