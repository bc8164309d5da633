//! What the user of the program should know, and only the gateway knows.

use std::fmt;

/// Said once. Whoever hears it is on the thread that turns the stack, and must not make it wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The host lets this user send no pings; the counter is `echo_not_permitted`.
    PingNotPermitted,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PingNotPermitted => {
                "pings get no answer: this user may not send them (sysctl net.ipv4.ping_group_range)"
            }
        })
    }
}
