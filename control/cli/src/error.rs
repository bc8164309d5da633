//! Errors that determine the exit code of towpath.

use std::fmt;

use rustix::io::Errno;

/// Exit code of `towpath` if it does not return PROGRAM's exit status. `run` uses 125, 126 and 127,
/// as env(1), timeout(1) and docker do. Other values would be ambiguous, because PROGRAM may return
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Invalid command line of `ip`. ip(8) has the same value, and uses 2 for errors of the kernel.
    IpUsage = 1,
    /// Invalid command line of all commands except `run` and `ip`.
    Usage = 2,
    /// A measured value violated a bound of `load --assert`.
    BoundMissed = 3,
    /// The server tested by `load` accepted no connection, or sent no response.
    NoAnswer = 4,
    /// `load --search` ended because the tester fell behind, or `sim --realtime` was late.
    TesterBehind = 5,
    /// An internal error occurred, or a resource was not available.
    Failed = 125,
    /// PROGRAM exists, but cannot be executed.
    NotExecutable = 126,
    /// PROGRAM was not found.
    NotFound = 127,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        (code as u8).into()
    }
}

/// Error that carries an exit code through `anyhow`.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of towpath.
    pub code: ExitCode,
    message: String,
}

impl Failure {
    /// Creates an error with a complete error message and an exit code.
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

/// Returns the exit code of an error, or [`ExitCode::Failed`] if it has none.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Failure>().map_or(ExitCode::Failed, |failure| failure.code) as u8
}

/// Returns advice to append to an error message whose system error alone is not helpful. Empty for
/// other errors.
pub fn advice(error: &anyhow::Error) -> &'static str {
    // Compare the text of the error, because errors of several crates and threads arrive as text.
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
