//! `towpath completions`: scripts for shells, which ask for the names of live runs.
//!
//! `clap_complete` makes the scripts of the options alone. Its scripts have a place for the value
//! of `--name` and of `--run`, which gets the list of `towpath completions --live`.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use towpath_model::{Call, Run, ask_all, runs};

use crate::args::Cli;
use crate::output;

/// Options of `towpath completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to generate for
    #[arg(required_unless_present = "live")]
    pub shell: Option<Shell>,
    /// Print the names or the process ids of live runs, for the scripts
    #[arg(long, value_name = "KIND", hide = true, conflicts_with = "shell")]
    pub live: Option<Live>,
}

/// `--live`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Live {
    /// Names that `--name` gave.
    Names,
    /// Process ids.
    Pids,
}

/// Commands whose `--name` and `--run` mean a live run.
const COMMANDS: &str = "ip acl port stats";

/// Prints a script, or the live runs.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    if let Some(live) = args.live {
        // Files of a run that was killed go when it is asked.
        drop(ask_all(None, &Call::Info));
        return output::write(listed(live, &runs()).as_bytes());
    }
    let Some(shell) = args.shell else { return Ok(()) };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "towpath", &mut script);
    let script = String::from_utf8(script)?;
    output::write(with_runs(shell, script).as_bytes())
}

fn listed(live: Live, runs: &[Run]) -> String {
    let words = runs.iter().filter_map(|run| match live {
        Live::Names => run.name.as_ref().map(ToString::to_string),
        Live::Pids => Some(run.pid.to_string()),
    });
    words.map(|word| word + "\n").collect()
}

/// The script with lists of live runs.
fn with_runs(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script.replace("complete -F _towpath ", "complete -F _towpath_live ") + BASH,
        Shell::Fish => script + &fish(),
        Shell::Zsh => zsh(&script),
        _ => script,
    }
}

/// Wraps the function of the script: the word behind `--name`, and the first one behind `ss`.
const BASH: &str = r#"
_towpath_live() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" kind=""
    if [[ "${cur}" == "=" ]]; then
        cur=""
    elif [[ "${prev}" == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    case "${COMP_WORDS[1]} ${prev}" in
        "ip --name"|"acl --name"|"port --name"|"stats --name") kind=names ;;
        "ip --run"|"acl --run"|"port --run"|"stats --run") kind=pids ;;
        "ss "*) [[ "${cur}" == -* ]] || kind=pids ;;
    esac
    if [[ -n "${kind}" ]]; then
        COMPREPLY=($(compgen -W "$("$1" completions --live "${kind}" 2>/dev/null)" -- "${cur}"))
        return 0
    fi
    _towpath "$@"
}
"#;

fn fish() -> String {
    let line = |command: &str, option: &str, kind: &str| {
        format!(
            "complete -c towpath -n \"__fish_towpath_using_subcommand {command}\" {option} -f -a \
             '(towpath completions --live {kind} 2>/dev/null)'\n"
        )
    };
    let of_commands = COMMANDS.split(' ').flat_map(|command| {
        [line(command, "-l name -r", "names"), line(command, "-l run -r", "pids")]
    });
    of_commands.chain([line("ss", "", "pids")]).collect()
}

/// Options that mean a live run get an action of their own, which needs a function.
fn zsh(script: &str) -> String {
    const FUNCTION: &str = r#"_towpath_live() {
    local -a live
    live=(${(f)"$(towpath completions --live $1 2>/dev/null)"})
    compadd -a live
}

"#;
    const LAST: &str = "if [ \"$funcstack[1]\"";
    script
        .replace("its --name gave]:NAME:_default", "its --name gave]:NAME:{_towpath_live names}")
        .replace(":PID:_default", ":PID:{_towpath_live pids}")
        .replace(LAST, &format!("{FUNCTION}{LAST}"))
}

#[cfg(test)]
mod tests {
    use towpath_model::Word;

    use super::*;

    #[test]
    fn live_runs_are_listed_by_name_or_number() {
        let run = |pid, name: Option<&'static str>| Run { pid, name: name.map(Word::known) };
        let runs = [run(3, None), run(7, Some("web"))];
        assert_eq!(listed(Live::Names, &runs), "web\n");
        assert_eq!(listed(Live::Pids, &runs), "3\n7\n");
    }

    /// The places in the scripts of `clap_complete` are those that are expected.
    #[test]
    fn each_script_asks_for_live_runs() {
        let script = |shell| {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "towpath", &mut script);
            with_runs(shell, String::from_utf8(script).unwrap())
        };
        let bash = script(Shell::Bash);
        assert!(!bash.contains("complete -F _towpath "), "{bash}");
        let commands = COMMANDS.split(' ').count();
        let zsh = script(Shell::Zsh);
        assert_eq!(zsh.matches(":NAME:{_towpath_live names}").count(), commands);
        assert_eq!(zsh.matches(":PID:{_towpath_live pids}").count(), commands);
        assert_eq!(zsh.matches("_towpath_live() {").count(), 1);
        let fish = script(Shell::Fish);
        assert_eq!(fish.matches("--live names").count(), commands);
    }
}
