//! Debian packages for the tests with real programs, and for counts.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Packages, each with a file whose existence shows that it is installed.
const PACKAGES: &[(&str, &str)] = &[
    ("nginx-light", "/usr/sbin/nginx"),
    ("redis-server", "/usr/bin/redis-server"),
    ("redis-tools", "/usr/bin/redis-benchmark"),
    ("iperf3", "/usr/bin/iperf3"),
    ("wrk", "/usr/bin/wrk"),
    ("curl", "/usr/bin/curl"),
    ("nghttp2-client", "/usr/bin/h2load"),
    ("openssl", "/usr/bin/openssl"),
    ("nodejs", "/usr/bin/node"),
    ("python3", "/usr/bin/python3"),
    ("tshark", "/usr/bin/tshark"),
    ("tcpdump", "/usr/bin/tcpdump"),
    ("iproute2", "/usr/sbin/ip"),
    ("nftables", "/usr/sbin/nft"),
    ("dnsmasq-base", "/usr/sbin/dnsmasq"),
    ("bind9-dnsutils", "/usr/bin/dig"),
    ("isc-dhcp-client", "/sbin/dhclient"),
    ("ndisc6", "/usr/bin/rdisc6"),
    ("iputils-ping", "/usr/bin/ping"),
    ("iputils-tracepath", "/usr/bin/tracepath"),
    ("traceroute", "/usr/bin/traceroute"),
    ("procps", "/usr/bin/pgrep"),
    ("net-tools", "/usr/bin/netstat"),
    ("lsof", "/usr/bin/lsof"),
    ("python3-psutil", "/usr/lib/python3/dist-packages/psutil/__init__.py"),
    ("gcc", "/usr/bin/gcc"),
    ("clang", "/usr/bin/clang"),
    ("busybox-static", "/bin/busybox"),
    ("valgrind", "/usr/bin/valgrind"),
];

/// Further paths at which a program may be installed without its package.
const ALTERNATIVES: &[(&str, &str)] =
    &[("nodejs", "/usr/local/bin/node"), ("iproute2", "/sbin/ip")];

/// Installs missing packages for tests and counts. Fails with their names if the user is not root.
pub fn install() -> Result<()> {
    install_packages(PACKAGES)
}

/// Installs missing packages of the nightly.
pub fn install_for_nightly() -> Result<()> {
    install()?;
    install_packages(&[
        ("bird2", "/usr/sbin/bird"),
        ("frr", "/usr/lib/frr/bgpd"),
        ("qemu-system-x86", "/usr/bin/qemu-system-x86_64"),
        ("linux-image-cloud-amd64", "/usr/share/doc/linux-image-cloud-amd64"),
        ("cpio", "/usr/bin/cpio"),
        ("dpdk-dev", "/usr/bin/dpdk-testpmd"),
        ("kmod", "/sbin/modprobe"),
    ])
}

/// Installs packages whose file is missing. Fails with their names if the user is not root.
pub fn install_packages(packages: &[(&'static str, &str)]) -> Result<()> {
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

/// Installs one package if `file` is missing, which only one chore needs.
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

/// Returns whether the feature `dpdk` can be built. If not, prints the missing package.
pub fn has_dpdk() -> bool {
    let found = Command::new("pkg-config").args(["--exists", "libdpdk"]).status();
    let is_installed = found.is_ok_and(|status| status.success());
    if !is_installed {
        println!("left out: DPDK, which needs the Debian package libdpdk-dev");
    }
    is_installed
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
