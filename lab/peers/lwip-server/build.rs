//! Compiles lwIP and a server for its raw API, with the options of `include/lwipopts.h`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of lwIP's `src` required for Ethernet, ARP, IPv4, ICMP, UDP and TCP without an operating
/// system.
const SOURCES: &[&str] = &[
    "core/def.c",
    "core/inet_chksum.c",
    "core/init.c",
    "core/ip.c",
    "core/ipv4/etharp.c",
    "core/ipv4/icmp.c",
    "core/ipv4/ip4.c",
    "core/ipv4/ip4_addr.c",
    "core/ipv4/ip4_frag.c",
    "core/mem.c",
    "core/memp.c",
    "core/netif.c",
    "core/pbuf.c",
    "core/tcp.c",
    "core/tcp_in.c",
    "core/tcp_out.c",
    "core/timeouts.c",
    "core/udp.c",
    "netif/ethernet.c",
];

/// Files of our server.
const SERVER: &[&str] = &["src/server.c", "src/streams.c", "src/tap.c"];

fn main() -> Result<(), Box<dyn Error>> {
    let lwip = sources()?;
    let mut build = cc::Build::new();
    build.include("include").include(lwip.join("include"));
    build.files(SOURCES.iter().map(|file| lwip.join(file))).files(SERVER);
    build.warnings_into_errors(false).compile("lwip-server");
    for changed in ["build.rs", "include", "src"] {
        println!("cargo::rerun-if-changed={changed}");
    }
    Ok(())
}

/// Returns the directory of lwIP's `src`, in a package that the manifest lists for a target that is
/// never built.
fn sources() -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(std::env::var("CARGO")?)
        .args(["metadata", "--locked", "--format-version", "1"])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata = String::from_utf8(output.stdout)?;
    let manifests = metadata.split("\"manifest_path\":\"").skip(1);
    let mut folders = manifests.filter_map(|rest| Path::new(rest.split('"').next()?).parent());
    let is_lwip = |folder: &&Path| {
        let name = folder.file_name().map(|name| name.to_string_lossy());
        let version = name.as_deref().and_then(|name| name.strip_prefix("lwip-"));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    let folder =
        folders.find(is_lwip).ok_or("cargo metadata names no folder of the package lwip")?;
    Ok(folder.join("src"))
}
