//! Builds the command line of DPDK's environment abstraction layer (EAL) from the user's arguments.

use std::ffi::CString;

use crate::error::OpenError;

/// Command line of DPDK's environment abstraction layer (EAL).
#[derive(Debug)]
pub(crate) struct Arguments {
    /// Arguments, of which the first is the program's name.
    pub words: Vec<CString>,
    /// Whether the user enabled EAL's log, which is written to standard error.
    pub logs: bool,
    /// Whether the user enabled telemetry, for which EAL creates a socket in a directory.
    pub keeps_files: bool,
}

/// EAL arguments that are rejected, with the reason.
const REFUSED: [(&str, &str); 5] = [
    ("-h", "EAL would print its usage and end"),
    ("--help", "EAL would print its usage and end"),
    ("-v", "EAL would print to standard output, which is PROGRAM's"),
    ("--proc-type", "frames of the stack are memory of one process"),
    ("--log-level=help", "EAL would print to standard output and end"),
];

/// EAL options by which the user selects CPUs.
const CORES: [&str; 4] = ["-l", "-c", "--lcores", "--main-lcore"];

/// Returns the EAL arguments. Adds options that confine EAL to this process: no files, no sockets,
/// and no threads pinned to CPUs. `cpus` are the CPUs available to this process.
pub(crate) fn arguments(given: &str, cpus: &[usize]) -> Result<Arguments, OpenError> {
    let mut words =
        shlex::split(given).ok_or_else(|| OpenError::Quotes { text: given.to_owned() })?;
    for word in &words {
        let is = |(refused, _): &&(&str, _)| is_option(word, refused);
        if let Some((_, why)) = REFUSED.iter().find(is) {
            return Err(OpenError::Refused { word: word.clone(), why });
        }
    }
    let has = |words: &[String], option: &str| words.iter().any(|word| is_option(word, option));
    // EAL 22.11 rejects --in-memory together with --no-huge. With the latter, only a configuration
    // file is created.
    if has(&words, "--no-huge") {
        words.retain(|word| word != "--in-memory");
        if !has(&words, "--no-shconf") {
            words.push("--no-shconf".into());
        }
    } else if !has(&words, "--in-memory") && !has(&words, "--legacy-mem") {
        words.push("--in-memory".into());
    }
    let keeps_files = has(&words, "--telemetry");
    if !keeps_files && !has(&words, "--no-telemetry") {
        words.push("--no-telemetry".into());
    }
    // Use one lcore (EAL thread) for all CPUs. EAL then starts no further threads, and does not pin
    // the calling thread to a CPU.
    if !CORES.iter().any(|option| has_joined(&words, option)) {
        let list: Vec<_> = cpus.iter().map(usize::to_string).collect();
        words.push(format!("--lcores=0@({})", list.join(",")));
    }
    let logs = has(&words, "--log-level");
    let named = std::iter::once("towpath".to_owned()).chain(words);
    let words = named.map(|word| {
        let why = "it has a byte of zero";
        CString::new(word.clone()).map_err(|_| OpenError::Refused { word, why })
    });
    Ok(Arguments { words: words.collect::<Result<_, _>>()?, logs, keeps_files })
}

/// Returns whether a word of the command line is this option, with or without a value.
fn is_option(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Returns whether one of the words is this option, with or without a value. The value may be
/// joined to a short option, as in `-l0`.
fn has_joined(words: &[String], option: &str) -> bool {
    let is_short = option.len() == 2;
    words.iter().any(|word| is_option(word, option) || is_short && word.starts_with(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &str) -> Vec<String> {
        let arguments = arguments(given, &[0, 3]).expect("good words");
        arguments.words.iter().map(|word| word.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn files_sockets_and_pinned_threads_are_left_out() {
        assert_eq!(
            of("--no-huge --in-memory '--vdev=net_tap0,iface=a b'"),
            [
                "towpath",
                "--no-huge",
                "--vdev=net_tap0,iface=a b",
                "--no-shconf",
                "--no-telemetry",
                "--lcores=0@(0,3)",
            ]
        );
        assert_eq!(of(""), ["towpath", "--in-memory", "--no-telemetry", "--lcores=0@(0,3)"]);
        let given = "--in-memory --telemetry -l1";
        assert_eq!(of(given), ["towpath", "--in-memory", "--telemetry", "-l1"]);
    }

    #[test]
    fn a_log_and_telemetry_are_the_users_to_ask_for() {
        let asked = |given| {
            let Arguments { logs, keeps_files, .. } = arguments(given, &[0]).expect("good words");
            (logs, keeps_files)
        };
        assert_eq!(asked(""), (false, false));
        assert_eq!(asked("--log-level=8 --telemetry"), (true, true));
    }

    #[test]
    fn words_that_end_the_process_are_refused() {
        for given in ["-h", "--help", "-v", "--proc-type=secondary", "--log-level=help"] {
            let refused = arguments(given, &[0]).err();
            assert!(matches!(refused, Some(OpenError::Refused { .. })), "{given}");
        }
        assert!(matches!(arguments("'--vdev", &[0]), Err(OpenError::Quotes { .. })));
    }
}
