//! Failures with the exit code that tells them apart.

use std::fmt;

use rustix::io::Errno;

/// Exit status of `towpath` where it is not PROGRAM's own. `run` has 125, 126 and 127 as env(1),
/// timeout(1) and docker have them, and no other: PROGRAM may well exit with 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Something on the command line is wrong, of `ip`, as of ip(8), whose 2 is the stack's
    /// refusal.
    IpUsage = 1,
    /// Something on the command line is wrong, of all commands but `run` and `ip`.
    Usage = 2,
    /// A bound of `load --assert` is not kept.
    BoundMissed = 3,
    /// The server of `load` had no connection, or no answer.
    NoAnswer = 4,
    /// `load --search` ended because the tester fell behind.
    TesterBehind = 5,
    /// Towpath itself failed.
    Failed = 125,
    /// PROGRAM was found but cannot be executed.
    NotExecutable = 126,
    /// PROGRAM was not found.
    NotFound = 127,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        (code as u8).into()
    }
}

/// An error that carries its exit code through `anyhow`.
#[derive(Debug)]
pub struct Failure {
    /// Exit status of towpath.
    pub code: ExitCode,
    message: String,
}

impl Failure {
    /// An error with `message`, which says whatever there is to say, and the exit code.
    pub fn error(code: ExitCode, message: impl Into<String>) -> anyhow::Error {
        Self { code, message: message.into() }.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The exit code of any error: [`ExitCode::Failed`] unless it says otherwise.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Failure>().map_or(ExitCode::Failed, |failure| failure.code) as u8
}

/// Advice behind a message, where the system's error alone does not say what to do.
pub fn advice(error: &anyhow::Error) -> &'static str {
    // Errors of several crates and of threads end in the words of std.
    let full = format!("(os error {})", Errno::MFILE.raw_os_error());
    match format!("{error:#}").contains(&full) {
        true => ": raise the limit of open files, as with `ulimit -n 1024`",
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_hit_is_named() {
        let full = || std::io::Error::from(Errno::MFILE);
        assert!(advice(&anyhow::Error::from(full()).context("socketpair")).contains("ulimit -n"));
        assert!(advice(&anyhow::anyhow!("the stack: {}", full())).contains("ulimit -n"));
        assert_eq!(advice(&Errno::PERM.into()), "");
    }
}
