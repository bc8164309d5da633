//! The Debian packages that the tests with real programs, and counts, need.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Package, and a file that shows that it is there.
const PACKAGES: &[(&str, &str)] = &[
    ("nginx-light", "/usr/sbin/nginx"),
    ("redis-server", "/usr/bin/redis-server"),
    ("redis-tools", "/usr/bin/redis-benchmark"),
    ("iperf3", "/usr/bin/iperf3"),
    ("wrk", "/usr/bin/wrk"),
    ("curl", "/usr/bin/curl"),
    ("openssl", "/usr/bin/openssl"),
    ("nodejs", "/usr/bin/node"),
    ("python3", "/usr/bin/python3"),
    ("tshark", "/usr/bin/tshark"),
    ("tcpdump", "/usr/bin/tcpdump"),
    ("iproute2", "/usr/sbin/ip"),
    ("nftables", "/usr/sbin/nft"),
    ("iputils-ping", "/usr/bin/ping"),
    ("iputils-tracepath", "/usr/bin/tracepath"),
    ("traceroute", "/usr/bin/traceroute"),
    ("procps", "/usr/bin/pgrep"),
    ("net-tools", "/usr/bin/netstat"),
    ("lsof", "/usr/bin/lsof"),
    ("python3-psutil", "/usr/lib/python3/dist-packages/psutil/__init__.py"),
    ("gcc", "/usr/bin/gcc"),
    ("busybox-static", "/bin/busybox"),
    ("valgrind", "/usr/bin/valgrind"),
];

/// Other places where a program that is no Debian package may stand instead.
const ALTERNATIVES: &[(&str, &str)] =
    &[("nodejs", "/usr/local/bin/node"), ("iproute2", "/sbin/ip")];

/// Packages of `cargo xtask proxies`.
const OF_PROXIES: &[(&str, &str)] = &[
    ("iperf3", "/usr/bin/iperf3"),
    ("iproute2", "/usr/sbin/ip"),
    ("slirp4netns", "/usr/bin/slirp4netns"),
    ("passt", "/usr/bin/pasta"),
];

/// Installs what is missing when we are root; says what is missing when not.
pub fn install() -> Result<()> {
    install_of(PACKAGES)
}

/// The same for `cargo xtask proxies`.
pub fn install_for_proxies() -> Result<()> {
    install_of(OF_PROXIES)
}

fn install_of(packages: &[(&'static str, &str)]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .filter(|(package, file)| {
            let elsewhere = ALTERNATIVES.iter().filter(|(p, _)| p == package).map(|(_, f)| f);
            !std::iter::once(file).chain(elsewhere).any(|f| std::path::Path::new(f).exists())
        })
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let uid = Command::new("id").arg("-u").output().context("id")?;
    if uid.stdout != b"0\n" {
        bail!("the tests need Debian packages; run: sudo apt-get install {}", missing.join(" "));
    }
    println!("installing {} (Debian may start their services)", missing.join(" "));
    apt(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&missing);
    apt(&arguments)
}

/// Installs one more package, which `file` shows, for a chore that alone needs it.
pub fn ensure_package(package: &str, file: &str) -> Result<()> {
    if std::path::Path::new(file).exists() {
        return Ok(());
    }
    let uid = Command::new("id").arg("-u").output().context("id")?;
    if uid.stdout != b"0\n" {
        bail!("{file} is missing; run: sudo apt-get install {package}");
    }
    apt(&["update", "-qq"])?;
    apt(&["install", "-y", "-qq", "--no-install-recommends", package])
}

fn apt(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(std::process::Stdio::null())
        .status()
        .context("apt-get")?;
    anyhow::ensure!(status.success(), "apt-get {} failed", arguments.join(" "));
    Ok(())
}
