//! The file that keeps a lease for the next start.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use towpath_dhcp::{KeptLease, Lease};
use towpath_tcp::Instant;

use crate::uplink::now_ns;

/// Returns the address of the kept lease; `None` if there is no valid one.
pub(super) fn read(path: &Path) -> Option<Ipv4Addr> {
    let kept: KeptLease = fs::read_to_string(path).ok()?.parse().ok()?;
    kept.is_valid(unix_s()).then_some(kept.address)
}

/// Replaces the content of the file by `lease`.
///
/// # Errors
/// As of open(2), write(2) and rename(2).
pub(super) fn write(path: &Path, lease: &Lease) -> io::Result<()> {
    let left = |until: Instant| until.since(Instant(now_ns())).as_secs();
    let until_unix_s = lease.valid_until.map(|until| unix_s() + left(until));
    let kept = KeptLease { address: lease.ip(), until_unix_s };
    replace(path, &format!("{kept}\n"))
}

/// Replaces the content of a file. Readers see the old content or the new one.
///
/// # Errors
/// As of open(2), write(2) and rename(2).
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

/// Returns the Unix time in seconds.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
