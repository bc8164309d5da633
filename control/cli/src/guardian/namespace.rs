//! Namespaces of `towpath proxy run`, created by the guardian before it starts PROGRAM.
//!
//! - The user namespace provides the capabilities to create the other namespaces.
//! - The network namespace has a TAP device as its only uplink.
//! - The mount namespace replaces /etc/resolv.conf, and /etc/hosts if hosts were added.
//! - The UTS namespace has another hostname, if requested.
//!
//! PROGRAM gains no privileges, because execve(2) drops the capabilities of users other than root.
//! The user namespace maps a single user and group, so set-user-ID has no effect. The namespaces
//! end with their last process and the device's descriptor.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Serialize};
use towpath_tap::{Options, Tap, add_default_route, set_up_host};

use super::covers::Covers;
use super::device::Device;
use super::sock_diag::SockDiag;
use super::{hosts, resolv_conf};

/// Configuration of the namespaces for a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// MTU of the device in bytes.
    pub mtu: u32,
    /// Addresses of the device in the namespace, each with its prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Addresses of the gateway, one for each address family.
    pub routers: Vec<IpAddr>,
    /// Nameservers for programs in the namespace; if empty, those of the host.
    pub nameservers: Vec<IpAddr>,
    /// Hostname in the namespace; `None` for the host's own name.
    pub hostname: Option<String>,
    /// Lines in the format of hosts(5) that are inserted before those of the host.
    pub hosts: String,
    /// Whether towpath will query the sockets of the namespace, to open and close published ports.
    pub asked_for_sockets: bool,
}

/// Name of the device in the namespace, which slirp4netns uses, too.
const DEVICE: &str = "tap0";
/// MTU of Linux's loopback interface in bytes.
const LOOPBACK_MTU: u32 = 65_536;

impl Namespace {
    /// Encodes the configuration as text that contains no NUL.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Decodes the result of [`Self::encode`].
    pub fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Moves this process into new namespaces, and creates the device and the private files of /etc
    /// there.
    ///
    /// # Errors
    /// Returns any error with a message for the user.
    pub fn enter(&self) -> Result<(Device, Covers)> {
        let user = leave(self.hostname.is_some())?;
        let device = self.furnish();
        // AppArmor may allow a user namespace to be created, but deny capabilities in it. Explain
        // this to the user.
        let forbidden = |error: &anyhow::Error| error.chain().any(is_forbidden);
        device.map_err(|error| match user && forbidden(&error) {
            true => error.context(Refusal::of_system(None).to_string()),
            false => error,
        })
    }

    fn furnish(&self) -> Result<(Device, Covers)> {
        // Make all mounts slaves, so that mounts made here are not visible outside of the
        // namespace.
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", slave).context("cannot keep mounts apart from the host's")?;
        let mut remarks = Vec::new();
        // Ignore errors: in some containers these settings are read-only. Linux's defaults apply
        // then.
        for (name, value) in settings() {
            let _ = fs::write(Path::new("/proc/sys/net").join(name), value);
        }
        set_up_host("lo", LOOPBACK_MTU, &[])?;
        let tap = Tap::open(&Options { name: Some(DEVICE.into()) })?;
        let has_v6 = Path::new("/proc/net/if_inet6").exists();
        let usable = |ip: IpAddr| ip.is_ipv4() || has_v6;
        if !has_v6 && self.addresses.iter().any(|(ip, _)| ip.is_ipv6()) {
            remarks.push("this host has no IPv6, and so PROGRAM has none".to_owned());
        }
        let addresses: Vec<_> =
            self.addresses.iter().copied().filter(|(ip, _)| usable(*ip)).collect();
        set_up_host(tap.name(), self.mtu, &addresses)?;
        for router in self.routers.iter().filter(|ip| usable(**ip)) {
            add_default_route(tap.name(), *router)?;
        }
        if let Some(name) = &self.hostname {
            rustix::system::sethostname(name.as_bytes()).context("sethostname")?;
        }
        let (covers, missing) = Covers::new(&self.files())?;
        remarks.extend(missing.into_iter().filter_map(|path| self.remark_without(path)));
        // Ignore errors: without a socket for queries, towpath tells the user about published
        // ports.
        let sockets =
            self.asked_for_sockets.then(|| SockDiag::open(tap.name())).and_then(Result::ok);
        Ok((Device { parts: tap.into_parts(), sockets, remarks }, covers))
    }

    /// Returns path and content of the files of /etc that differ from those of the host.
    fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut files = Vec::new();
        if !self.nameservers.is_empty() {
            let before = fs::read_to_string(resolv_conf::PATH).unwrap_or_default();
            let contents = resolv_conf::contents(&self.nameservers, &before);
            files.push((resolv_conf::PATH, contents.into_bytes()));
        }
        if !self.hosts.is_empty() {
            let before = fs::read(hosts::PATH).unwrap_or_default();
            files.push((hosts::PATH, [self.hosts.as_bytes(), &before].concat()));
        }
        if let Some(name) = &self.hostname {
            files.push((hosts::FILE_OF_NAME, format!("{name}\n").into_bytes()));
        }
        files
    }

    /// Returns a remark for the user about a file of /etc that should be replaced but does not
    /// exist.
    fn remark_without(&self, path: &str) -> Option<String> {
        match path {
            resolv_conf::PATH => Some(resolv_conf::missing(&self.nameservers)),
            hosts::PATH => Some(hosts::missing()),
            _ => None,
        }
    }
}

/// Returns sysctl settings for a new network namespace, which permit what a stack of `towpath run`
/// permits.
fn settings() -> [(&'static str, String); 4] {
    let group = getegid().as_raw();
    [
        // Allow unprivileged programs to listen on any port, and to send pings.
        ("ipv4/ip_unprivileged_port_start", "0".to_owned()),
        ("ipv4/ping_group_range", format!("{group} {group}")),
        // Disable router advertisements, because addresses and routes are configured here.
        ("ipv6/conf/default/accept_ra", "0".to_owned()),
        ("ipv6/conf/default/disable_ipv6", "0".to_owned()),
    ]
}

/// Enters new network and mount namespaces, and a new UTS namespace if `name` is true. Returns
/// whether a user namespace was needed.
fn leave(name: bool) -> Result<bool> {
    let mut all = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    all.set(CloneFlags::CLONE_NEWUTS, name);
    if unshare(all).is_ok() {
        return Ok(false);
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(all | CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| anyhow::Error::new(Refusal::of_system(Some(errno as i32))))?;
    // Deny setgroups(2) first, because otherwise unprivileged users cannot map their group
    // (user_namespaces(7)).
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    for (file, text) in maps {
        fs::write(format!("/proc/self/{file}"), text).map_err(|error| {
            let refusal = Refusal::of_system(error.raw_os_error()).to_string();
            anyhow::Error::new(error).context(format!("/proc/self/{file}")).context(refusal)
        })?;
    }
    Ok(true)
}

fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    let errno = match error.downcast_ref::<io::Error>() {
        Some(error) => error.raw_os_error(),
        None => error.downcast_ref::<Errno>().map(|errno| errno.raw_os_error()),
    };
    errno
        .is_some_and(|errno| [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error).contains(&errno))
        || error
            .downcast_ref::<towpath_tap::OpenError>()
            .is_some_and(|error| matches!(error, towpath_tap::OpenError::NotPermitted { .. }))
}

/// Reason why user namespaces are forbidden. The message contains the command that allows them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error(
        "user namespaces are forbidden (user.max_user_namespaces is 0): \
         sudo sysctl user.max_user_namespaces=10000, or run towpath as root"
    )]
    None,
    #[error(
        "the user namespaces of this user are used up (user.max_user_namespaces is {0}): \
         end some, or raise it with sudo sysctl user.max_user_namespaces={next}",
        next = .0.saturating_mul(2)
    )]
    UsedUp(u64),
    #[error(
        "user namespaces are forbidden to users (kernel.unprivileged_userns_clone is 0): \
         sudo sysctl kernel.unprivileged_userns_clone=1, or run towpath as root"
    )]
    Unprivileged,
    #[error(
        "AppArmor forbids user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1): \
         give towpath a profile with `userns,`, or \
         sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run towpath as root"
    )]
    AppArmor,
    #[error(
        "the kernel refuses a user namespace ({0}): in a container its runtime may forbid it \
         (seccomp); run towpath as root, or outside"
    )]
    Unknown(String),
}

impl Refusal {
    fn of_system(errno: Option<i32>) -> Self {
        Self::of(errno, |name| {
            let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            text.trim().parse().ok()
        })
    }

    fn of(errno: Option<i32>, sysctl: impl Fn(&str) -> Option<u64>) -> Self {
        let most = sysctl("user/max_user_namespaces");
        let full = [Errno::NOSPC, Errno::USERS].map(Errno::raw_os_error);
        if most == Some(0) {
            return Self::None;
        }
        if let (Some(most), true) = (most, errno.is_some_and(|errno| full.contains(&errno))) {
            return Self::UsedUp(most);
        }
        if sysctl("kernel/unprivileged_userns_clone") == Some(0) {
            return Self::Unprivileged;
        }
        if sysctl("kernel/apparmor_restrict_unprivileged_userns").is_some_and(|value| value != 0) {
            return Self::AppArmor;
        }
        let error = errno.map(io::Error::from_raw_os_error);
        Self::Unknown(error.map_or("no rights in it".into(), |error| error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_setting() {
        let said = |errno: Errno, name: &str, value| {
            let sysctl = |asked: &str| match asked {
                asked if asked == name => Some(value),
                "user/max_user_namespaces" => Some(1000),
                _ => None,
            };
            Refusal::of(Some(errno.raw_os_error()), sysctl).to_string()
        };
        let cases = [
            (Errno::NOSPC, "user/max_user_namespaces", 0, "user.max_user_namespaces is 0"),
            (Errno::NOSPC, "user/max_user_namespaces", 7, "user.max_user_namespaces=14"),
            (Errno::PERM, "kernel/unprivileged_userns_clone", 0, "unprivileged_userns_clone=1"),
            (
                Errno::PERM,
                "kernel/apparmor_restrict_unprivileged_userns",
                1,
                "kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (Errno::PERM, "kernel/unprivileged_userns_clone", 1, "Operation not permitted"),
        ];
        for (errno, name, value, wanted) in cases {
            let text = said(errno, name, value);
            assert!(text.contains(wanted), "{name}={value}: {text}");
        }
    }
}
