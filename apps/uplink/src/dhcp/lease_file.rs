//! The file in which a DHCP client keeps its lease for the next start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use towpath_dhcp::{KeptLease, Lease};
use towpath_tcp::Instant;

use crate::uplink::now_ns;

/// Returns the address of the lease in the file; `None` if there is no lease, or it has expired.
pub(super) fn read(path: &Path) -> Option<Ipv4Addr> {
    let kept: KeptLease = fs::read_to_string(path).ok()?.parse().ok()?;
    kept.is_valid(unix_s()).then_some(kept.address)
}

/// Replaces the content of the file by `lease`.
///
/// # Errors
/// Returns errors of open(2), write(2) and rename(2).
pub(super) fn write(path: &Path, lease: &Lease) -> io::Result<()> {
    let left = |until: Instant| until.since(Instant(now_ns())).as_secs();
    let until_unix_s = lease.valid_until.map(|until| unix_s() + left(until));
    let kept = KeptLease { address: lease.ip(), until_unix_s };
    replace(path, &format!("{kept}\n"))
}

/// Replaces the content of a file. Readers see either the old or the new content, even after a
/// crash.
///
/// # Errors
/// Returns errors of unlink(2), open(2), write(2), fdatasync(2) and rename(2).
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // Remove an existing file first. Its name is predictable, so another user may have created a
    // symbolic link with this name.
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = File::create_new(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    fs::rename(&new, path)
}

/// Returns the current Unix time in seconds.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn replaces_files_without_following_links() {
        let dir = std::env::temp_dir().join(format!("towpath-replace-{}", std::process::id()));
        fs::create_dir(&dir).expect("it is new");
        let (path, target) = (dir.join("lease"), dir.join("target"));
        fs::write(&target, "kept").expect("it can be written");
        symlink(&target, dir.join("lease.new")).expect("it can be created");
        replace(&path, "first").expect("it can be written");
        replace(&path, "second").expect("it can be written");
        let read = |path: &Path| fs::read_to_string(path).expect("it is there");
        assert_eq!((read(&path), read(&target)), ("second".to_owned(), "kept".to_owned()));
        fs::remove_dir_all(&dir).expect("it is there");
    }
}
