//! /etc/resolv.conf of a new mount namespace: another file, bound over the one that is there.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

const PATH: &str = "/etc/resolv.conf";
/// Folder that a tmpfs covers while the file is written. Every system has this folder.
const FOLDER: &str = "/etc";

/// Replaces the file for all processes of this mount namespace. Lines other than those with a
/// nameserver stay. Gives a remark for the user where there is no such file.
///
/// # Errors
/// The kernel refuses to mount.
pub fn replace(nameservers: &[IpAddr]) -> Result<Option<String>> {
    let before = fs::read_to_string(PATH).unwrap_or_default();
    if bind(PATH, contents(nameservers, &before).as_bytes())? {
        return Ok(None);
    }
    let nameservers = nameservers.iter().map(IpAddr::to_string).collect::<Vec<_>>();
    Ok(Some(format!(
        "{PATH} is missing: programs do not know that {} resolve names",
        nameservers.join(" and ")
    )))
}

/// Binds a file with these contents over one of /etc, for all processes of this mount namespace;
/// false where there is none.
///
/// # Errors
/// The kernel refuses to mount.
pub fn bind(path: &'static str, contents: &[u8]) -> Result<bool> {
    // The end of a link, as systemd-resolved has one there, which stays reachable below the cover.
    let file = match openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error).context(path),
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("towpath", FOLDER, "tmpfs", flags, c"mode=755,size=16m").context("mount a tmpfs")?;
    let bound = fs::write(path, contents).context(path).and_then(|()| {
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        mount_bind(path, place).with_context(|| format!("bind a file to {path}"))
    });
    // The bound file stays without the folder from which it comes.
    unmount(FOLDER, UnmountFlags::DETACH).context("unmount a tmpfs")?;
    bound.map(|()| true)
}

/// The new file: the nameservers, and what the old one says of names.
fn contents(nameservers: &[IpAddr], before: &str) -> String {
    let mut text = String::new();
    for ip in nameservers {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "nameserver {ip}");
    }
    let kept = before.lines().filter(|line| {
        let word = line.split_whitespace().next().unwrap_or_default();
        matches!(word, "search" | "domain" | "options")
    });
    for line in kept {
        text += line;
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_nameservers_stays() {
        let before =
            "# by hand\nnameserver 127.0.0.53\noptions edns0\n search a.example b\nnameserver";
        let ips = ["10.0.2.3", "fd00:2::3"].map(|ip| ip.parse().expect("an address"));
        let wanted =
            "nameserver 10.0.2.3\nnameserver fd00:2::3\noptions edns0\n search a.example b\n";
        assert_eq!(contents(&ips, before), wanted);
    }
}
