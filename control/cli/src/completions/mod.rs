//! `towpath completions`: prints completion scripts for shells. The scripts query the names of live
//! runs.
//!
//! `clap_complete` generates scripts for options only. The values of `--name` and `--run` are
//! completed from `towpath completions --live`. The words of `ip`, `acl`, `nat`, `conntrack`,
//! `port` and `setting` are completed from `towpath completions --next` (`next`).

mod next;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use towpath_model::{Client, Runs};

use crate::args::Cli;
use crate::output;

/// Options of `towpath completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to generate for
    #[arg(required_unless_present_any = ["live", "next"])]
    pub shell: Option<Shell>,
    /// Print the names or process ids of running instances, for the completion scripts
    #[arg(long, value_name = "KIND", hide = true, conflicts_with = "shell")]
    pub live: Option<LiveArg>,
    /// Print the words that may follow these words of a command line, for the completion scripts
    #[arg(long, value_name = "WORD", hide = true, conflicts_with_all = ["shell", "live"])]
    #[arg(num_args = 1.., allow_hyphen_values = true)]
    pub next: Vec<String>,
}

/// Values of `--live`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LiveArg {
    /// Names that were set by `--name`.
    Names,
    /// Process ids.
    Pids,
}

/// Commands in which `--name` and `--run` select a live run.
const COMMANDS: &str = "ip acl nat conntrack dns port config setting stats top metrics";

/// Prints a completion script, or a list of words for such a script.
///
/// # Errors
/// Returns an error if writing to standard output fails.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    if let Some(live) = args.live {
        return output::write(listed(live, &Runs::own().list()).as_bytes());
    }
    let Some(shell) = args.shell else {
        let words = next::next(&args.next).into_iter().map(|word| word + "\n");
        return output::write_text(&words.collect::<String>());
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "towpath", &mut script);
    let script = String::from_utf8(script)?;
    output::write(with_runs(shell, script).as_bytes())
}

fn listed(live: LiveArg, runs: &[Client]) -> String {
    let words = runs.iter().filter_map(|run| match live {
        LiveArg::Names => run.name().map(str::to_owned),
        LiveArg::Pids => Some(run.pid().to_string()),
    });
    words.map(|word| word + "\n").collect()
}

/// Adds the completion of live runs to a generated script.
fn with_runs(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script.replace("complete -F _towpath ", "complete -F _towpath_live ") + BASH,
        Shell::Fish => script + &fish(),
        Shell::Zsh => zsh(&script),
        _ => script,
    }
}

/// Bash function that wraps the generated function. The wrapper completes the value of `--name`,
/// the first word after `ss`, and the words of `ip`, `acl`, `nat`, `conntrack`, `port` and
/// `setting`.
const BASH: &str = r#"
_towpath_live() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" kind=""
    local before=$((COMP_CWORD-1))
    if [[ "${cur}" == "=" ]]; then
        # The "=" belongs to the words before the value, which is still empty.
        cur="" before=${COMP_CWORD}
    elif [[ "${prev}" == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    case "${COMP_WORDS[1]} ${prev}" in
        "ip --name"|"acl --name"|"nat --name"|"conntrack --name"|"port --name"|"stats --name")
            kind=names ;;
        "config --name"|"dns --name"|"setting --name"|"top --name"|"metrics --name") kind=names ;;
        "config --run"|"dns --run"|"setting --run"|"top --run"|"metrics --run") kind=pids ;;
        "ip --run"|"acl --run"|"nat --run"|"conntrack --run"|"port --run"|"stats --run")
            kind=pids ;;
        "ss "*) [[ "${cur}" == -* ]] || kind=pids ;;
    esac
    if [[ -n "${kind}" ]]; then
        COMPREPLY=($(compgen -W "$("$1" completions --live "${kind}" 2>/dev/null)" -- "${cur}"))
        return 0
    fi
    local command="${COMP_WORDS[1]}"
    if [[ " ip acl nat conntrack port setting " == *" ${command} "* ]] \
        && [[ "${cur}" != -* && ${COMP_CWORD} -gt 1 ]]; then
        local next="$("$1" completions --next "${COMP_WORDS[@]:1:before}" 2>/dev/null)"
        if [[ -n "${next}" ]]; then
            COMPREPLY=($(compgen -W "${next}" -- "${cur}"))
            # The value follows "=" without a space.
            if [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *= ]]; then
                compopt -o nospace 2>/dev/null
            fi
            return 0
        fi
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
    // Use `string length -q`, so that the rule applies only if there are words. Otherwise -f would
    // suppress the completion of files for `acl load`.
    const NEXT: &str = "towpath completions --next (commandline -opc)[2..-1] 2>/dev/null";
    let words = ["ip", "acl", "nat", "conntrack", "port", "setting"].map(|command| {
        format!(
            "complete -c towpath -n \"__fish_towpath_using_subcommand {command}; and {NEXT} | \
             string length -q\" -f -a '({NEXT})'\n"
        )
    });
    of_commands.chain([line("ss", "", "pids")]).chain(words).collect()
}

/// Replaces the zsh actions of options that select a live run by functions.
fn zsh(script: &str) -> String {
    const FUNCTION: &str = r#"_towpath_live() {
    local -a live
    live=(${(f)"$(towpath completions --live $1 2>/dev/null)"})
    compadd -a live
}

_towpath_next() {
    local -a which next
    local option
    for option in --name --run --user; do
        [[ -n "${opt_args[$option]}" ]] && which+=("$option" "${opt_args[$option]}")
    done
    next=(${(f)"$(towpath completions --next $1 $which ${words[1,CURRENT-1]} 2>/dev/null)"})
    # No words: the next one may be a file, as of `acl load`.
    if (( $#next )); then
        compadd -a next
    else
        _default
    fi
}

"#;
    const LAST: &str = "if [ \"$funcstack[1]\"";
    script
        .replace("option --name]:NAME:_default", "option --name]:NAME:{_towpath_live names}")
        .replace(":PID:_default", ":PID:{_towpath_live pids}")
        .replace("show, add, del, ...:_default", "show, add, del, ...:{_towpath_next ip}")
        .replace("load FILE, flush:_default", "load FILE, flush:{_towpath_next acl}")
        .replace("replace id N RULE, del N, flush:_default", "del N, flush:{_towpath_next nat}")
        .replace("flush, events, stats:_default", "events, stats:{_towpath_next conntrack}")
        .replace("all ports):_default", "all ports):{_towpath_next port}")
        .replace("set NAME=VALUE:_default", "set NAME=VALUE:{_towpath_next setting}")
        .replace(LAST, &format!("{FUNCTION}{LAST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the scripts of `clap_complete` contain the patterns that this module replaces.
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
        for command in ["ip", "acl", "nat", "conntrack", "port", "setting"] {
            assert_eq!(
                zsh.matches(&format!(":{{_towpath_next {command}}}")).count(),
                1,
                "{command}"
            );
        }
        let fish = script(Shell::Fish);
        assert_eq!(fish.matches("--live names").count(), commands);
        // The shell completes files if `--next` returns no words.
        assert_eq!(fish.matches("| string length -q\" -f").count(), 6, "{fish}");
        assert!(zsh.contains("_default\n    fi"), "{zsh}");
    }
}
