//! Parameters of keepalive probes.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use super::handle::fail;

/// Linux's maximum of the idle time and of the probe interval in seconds (MAX_TCP_KEEPIDLE,
/// MAX_TCP_KEEPINTVL).
const SECONDS_MAX: u32 = 32_767;
/// Linux's maximum number of unanswered probes (MAX_TCP_KEEPCNT).
const PROBES_MAX: u32 = 127;

/// Parameters of keepalive probes (tcp(7)), for
/// [`TcpStream::set_keepalive`](super::TcpStream::set_keepalive).
///
/// Times are whole seconds; fractions are rounded up.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use towpath::net::KeepAlive;
///
/// let dead_after_a_minute = KeepAlive::new()
///     .idle(Duration::from_secs(30))
///     .interval(Duration::from_secs(10))
///     .probes(3);
/// assert_eq!(dead_after_a_minute.probes, 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepAlive {
    /// Time without data from the peer before the first probe is sent (TCP_KEEPIDLE).
    pub idle: Duration,
    /// Time between two probes (TCP_KEEPINTVL).
    pub interval: Duration,
    /// Number of unanswered probes after which the connection ends (TCP_KEEPCNT).
    pub probes: u32,
}

impl KeepAlive {
    /// Returns Linux's defaults: two hours of idle time, 75 s between probes, 9 probes.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(towpath::net::KeepAlive::new().idle.as_secs(), 7200);
    /// ```
    pub const fn new() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }

    /// Sets the idle time before the first probe. Valid are 1 to 32,767 s.
    ///
    /// # Examples
    /// See [`KeepAlive`].
    #[must_use]
    pub const fn idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// Sets the time between two probes, 1 to 32,767 s.
    ///
    /// # Examples
    /// See [`KeepAlive`].
    #[must_use]
    pub const fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the number of unanswered probes after which the connection ends, 1 to 127.
    ///
    /// # Examples
    /// See [`KeepAlive`].
    #[must_use]
    pub const fn probes(self, probes: u32) -> Self {
        Self { probes, ..self }
    }

    /// Returns the values that the socket's slot contains: idle time and interval in seconds, and
    /// number of probes.
    pub(super) fn words(self) -> io::Result<[u32; 3]> {
        let seconds = |time: Duration| {
            let rounded = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
            u32::try_from(rounded).unwrap_or(u32::MAX)
        };
        let words = [seconds(self.idle), seconds(self.interval), self.probes];
        let fits = |(word, most): (&u32, u32)| (1..=most).contains(word);
        if !words.iter().zip([SECONDS_MAX, SECONDS_MAX, PROBES_MAX]).all(fits) {
            return fail(Errno::INVAL);
        }
        Ok(words)
    }

    pub(super) fn from_words([idle, interval, probes]: [u32; 3]) -> Self {
        let seconds = |n: u32| Duration::from_secs(n.into());
        Self { idle: seconds(idle), interval: seconds(interval), probes }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_seconds_are_rounded_up() {
        let times =
            KeepAlive::new().idle(Duration::from_millis(1)).interval(Duration::from_secs(5));
        assert_eq!(times.words().unwrap(), [1, 5, 9]);
    }

    #[test]
    fn times_that_linux_refuses_are_refused() {
        let beyond = Duration::from_secs(u64::from(SECONDS_MAX) + 1);
        let new = KeepAlive::new();
        for times in [
            new.idle(Duration::ZERO),
            new.idle(beyond),
            new.interval(beyond),
            new.interval(Duration::MAX),
            new.probes(0),
            new.probes(128),
        ] {
            assert_eq!(times.words().unwrap_err().kind(), io::ErrorKind::InvalidInput, "{times:?}");
        }
    }
}
