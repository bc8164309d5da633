//! Checks rules for folders and files:
//!
//! - dependencies between crates, and circles of files;
//! - crates without unsafe code, and text that no file may contain;
//! - words and sentences of comments and documents;
//! - rings of method calls, and shared type names.

mod untested;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Folder prefix of a crate, and the folder prefixes of what it may depend on (besides itself).
/// Build and test dependencies are not restricted.
const EDGES: &[(&str, &[&str])] = &[
    ("memory/shm", &[]),
    ("memory/", &["memory/"]),
    ("core/wire", &["memory/sum"]),
    ("core/tcp", &["core/wire"]),
    ("core/filter", &["core/wire"]),
    ("core/conntrack", &["core/wire", "core/filter"]),
    ("core/lpm", &[]),
    ("core/cbpf", &[]),
    ("core/dns", &[]),
    ("core/dhcp", &["core/wire", "core/tcp", "memory/dice"]),
    ("core/nameserver", &["core/dns", "core/siit", "core/tcp"]),
    ("core/radv", &["core/dns", "core/wire", "core/tcp", "memory/dice"]),
    ("core/siit", &["core/wire"]),
    ("core/", &["core/", "memory/"]),
    ("devices/shape", &["memory/", "core/link", "core/qdisc"]),
    ("devices/virtio", &["memory/pool"]),
    ("devices/replay", &["memory/", "core/wire"]),
    ("devices/stream", &["memory/pool"]),
    ("devices/vhost", &["memory/", "core/qdisc", "devices/stream", "devices/virtio"]),
    ("devices/memif", &["memory/", "devices/stream"]),
    ("devices/vlan", &["memory/"]),
    ("devices/bridge", &["memory/", "core/qdisc"]),
    ("devices/nat64", &["memory/", "core/siit", "core/wire"]),
    ("devices/dpdk", &["memory/pool"]),
    ("devices/bpf", &["memory/shm"]),
    ("devices/interface", &["memory/shm"]),
    ("devices/netlink", &[]),
    (
        "devices/",
        &["memory/", "devices/pcap", "devices/virtio", "devices/bpf", "devices/interface"],
    ),
    ("client", &["memory/"]),
    ("engine", &["core/", "memory/"]),
    ("api/posix", &["client", "memory/", "core/dns"]),
    ("api/symbols", &["client", "api/posix", "memory/"]),
    ("api/preload", &["client", "api/posix", "api/symbols", "memory/"]),
    ("apps/gateway", &["core/", "memory/"]),
    (
        "api/towpath",
        &["client", "core/", "memory/", "engine", "apps/uplink", "devices/channel", "devices/tap"],
    ),
    ("api/capi", &["client", "api/posix", "api/towpath", "memory/shm"]),
    ("examples/", &["api/towpath"]),
    ("apps/chart", &[]),
    ("apps/load", &["apps/chart"]),
    ("apps/router", &["engine", "core/", "memory/"]),
    ("apps/kernel", &["engine", "core/", "devices/netlink"]),
    ("apps/script", &["core/", "memory/", "devices/pcap"]),
    ("apps/sim", &["core/", "memory/", "devices/pcap", "apps/chart"]),
    ("api/inline", &["client", "api/posix", "api/symbols", "memory/", "engine", "apps/uplink"]),
    ("apps/uplink", &["engine", "core/", "memory/", "devices/", "apps/gateway"]),
    ("control/model", &["engine", "core/wire"]),
    ("control/config", &["apps/router", "apps/uplink", "core/", "devices/nat64", "devices/vlan"]),
    ("control/cli", &["control/", "engine", "core/", "memory/", "devices/", "apps/"]),
    ("tests", &[]),
    ("fuzz", &["control/config", "engine", "core/", "memory/", "devices/"]),
    ("xtask", &[]),
    ("lab/load", &["apps/load"]),
    ("lab/link", &["core/link"]),
    ("lab/copies", &[]),
    ("lab/measure", &[]),
    ("lab/bounce", &["memory/pool", "devices/"]),
    ("lab/forward", &["lab/measure", "lab/filter", "engine", "core/", "memory/"]),
    ("lab/", &["lab/measure", "core/", "memory/"]),
    ("lab", &["xtask", "apps/chart"]),
];

/// Crates whose roots must contain `#![forbid(unsafe_code)]`. A trailing slash means all crates in
/// the folder.
const NO_UNSAFE: &[&str] = &[
    "core/",
    "control/",
    "fuzz",
    "xtask",
    "memory/pool",
    "lab",
    "lab/load",
    "lab/filter",
    "lab/bounce",
    "lab/forward",
    "lab/packets",
    "devices/channel",
    "devices/shape",
    "devices/virtio",
    "devices/replay",
    "devices/stream",
    "devices/vhost",
    "devices/memif",
    "devices/vlan",
    "devices/bridge",
    "apps/chart",
    "apps/load",
    "apps/router",
    "apps/kernel",
    "apps/script",
    "apps/sim",
];

/// Folders that must not contain static variables, because several instances may exist in one
/// process. Thread-local variables are allowed; [`THREADS`] creates those of the ring. Variables of
/// libc, declared in `extern` blocks, are allowed, too.
const NO_STATICS: &[&str] = &["client/src", "memory", "api/posix/src"];
const THREADS: &str = "memory/ring/src/tls.rs";

/// Path prefixes of files, and modules of the same crate that these files must not use. Parts that
/// are meant to be used separately must not depend on each other, or on modules that connect them.
const WALLS: &[(&str, &[&str])] = &[
    ("engine/src/shard", &["registry", "engine", "control", "remote"]),
    ("engine/src/registry", &["shard", "engine", "control"]),
    ("core/stack/src/net/control", &["net::data", "net::layer", "net::owner", "net::transport"]),
    ("core/stack/src/net/data", &["net::control", "net::layer", "net::owner", "net::transport"]),
    ("core/stack/src/net/snapshot", &["net::control", "net::data"]),
    ("core/stack/src/net/told", &["net::control", "net::data"]),
];

#[derive(clap::Args)]
pub struct Options {
    /// Lower the ceilings of xtask/words.json and xtask/structure.json to the counts below them.
    #[arg(long)]
    lower: bool,
    /// List all places of a folder that count against its ceilings, and check nothing.
    #[arg(long, value_name = "FOLDER", conflicts_with = "lower", num_args = 0..=1)]
    words: Option<Option<String>>,
    /// With --words: print the vocabulary of all comments instead.
    #[arg(long, requires = "words")]
    profile: bool,
}

/// Runs the checks, or lists what the options request.
pub fn chore(root: &Path, options: &Options) -> Result<()> {
    match &options.words {
        Some(_) if options.profile => crate::words::profile(root),
        Some(folder) => crate::words::list(root, folder.as_deref().unwrap_or_default()),
        None => check(root, options.lower),
    }
}

/// Checks all tracked files and all crates.
pub fn run(root: &Path) -> Result<()> {
    check(root, false)
}

fn check(root: &Path, lower: bool) -> Result<()> {
    let sources = crate::workspace::tracked(root)?;
    // Each check reads all files, so they share the processors.
    let [edges, words, structure] = std::thread::scope(|scope| {
        let edges = scope.spawn(|| edges(root, &sources));
        let words = scope.spawn(|| crate::words::check(root, lower));
        let structure = crate::structure::check(root, lower);
        [edges.join().expect("no panic"), words.join().expect("no panic"), structure]
    });
    let mut faults = [edges?, words?, structure?].concat();
    for file in sources {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        hygiene(&file, &text, &mut faults);
        if file.ends_with("Cargo.toml") {
            faults.extend(unlisted_tests(root, &file, &text)?);
        }
    }
    if !faults.is_empty() {
        bail!("tidy:\n  {}", faults.join("\n  "));
    }
    println!("tidy: edges, walls, circles, unsafe bans, words and files are in order");
    Ok(())
}

fn edges(root: &Path, sources: &[PathBuf]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let lab = crate::workspace::lab(root);
    let metadata = crate::workspace::metadata(root)?;
    // lab's metadata also lists crates of the main workspace, so use only its own crates.
    let metadata_of_lab = crate::workspace::metadata(&lab)?;
    let packages = |it: &Value| it["packages"].as_array().cloned().context("packages");
    let of_lab = packages(&metadata_of_lab)?.into_iter().filter(|package| {
        let manifest = package["manifest_path"].as_str();
        manifest.is_some_and(|it| Path::new(it).starts_with(&lab))
    });
    for package in packages(&metadata)?.into_iter().chain(of_lab) {
        let manifest = package["manifest_path"].as_str();
        let Some(folder) = folder_of(root, manifest) else { continue };
        let Some((_, allowed)) = EDGES.iter().find(|(prefix, _)| folder.starts_with(prefix)) else {
            faults.push(format!("{folder}: has no row in the table of edges (xtask/src/tidy.rs)"));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("dependencies")? {
            let path = dependency["path"].as_str().map(|p| format!("{p}/Cargo.toml"));
            let Some(to) = folder_of(root, path.as_deref()) else { continue };
            let free = matches!(dependency["kind"].as_str(), Some("dev" | "build"));
            if !free && !allowed.iter().any(|prefix| to.starts_with(prefix)) {
                faults.push(format!("{folder} must not depend on {to}"));
            }
        }
        faults.extend(untested::faults(root, &package, sources)?);
        crate::circles::check(root, &folder, &mut faults)?;
        let is_of = |row: &str| folder == row || row.ends_with('/') && folder.starts_with(row);
        if NO_UNSAFE.iter().any(|row| is_of(row)) {
            faults.extend(roots_with_unsafe(&root.join(&folder))?);
        }
    }
    Ok(faults)
}

/// Returns faults for roots of a crate's library and program that do not forbid unsafe code.
fn roots_with_unsafe(package: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for name in ["src/lib.rs", "src/main.rs"] {
        let file = package.join(name);
        if file.exists() && !std::fs::read_to_string(&file)?.contains("#![forbid(unsafe_code)]") {
            faults.push(format!("{} must forbid unsafe code", file.display()));
        }
    }
    Ok(faults)
}

fn folder_of(root: &Path, manifest: Option<&str>) -> Option<String> {
    let folder = Path::new(manifest?).parent()?.strip_prefix(root).ok()?;
    Some(folder.to_str()?.to_owned())
}

/// Returns faults for test files that cargo ignores. With `autotests = false`, a file must be a
/// module of `tests/main.rs` or a target in the manifest.
fn unlisted_tests(root: &Path, manifest: &Path, text: &str) -> Result<Vec<String>> {
    let folder = manifest.with_file_name("tests");
    if !text.contains("autotests = false") {
        return Ok(Vec::new());
    }
    let main = std::fs::read_to_string(root.join(&folder).join("main.rs")).unwrap_or_default();
    let mut faults = Vec::new();
    let entries = std::fs::read_dir(root.join(&folder));
    for entry in entries.with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let is_listed = main.contains(&format!("mod {name};"))
            || text.contains(&format!("\"tests/{name}.rs\""));
        if path.extension().is_some_and(|e| e == "rs") && name != "main" && !is_listed {
            let file = folder.join(name).with_extension("rs");
            faults
                .push(format!("{}: no module of tests/main.rs, so it never runs", file.display()));
        }
    }
    Ok(faults)
}

/// Checks a file's length, static variables, walls, and texts that must not be committed.
fn hygiene(file: &Path, text: &str, faults: &mut Vec<String>) {
    let name = file.display();
    if file.extension().is_some_and(|e| e == "rs") {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
        let is_test = file.components().any(|c| c.as_os_str() == "tests")
            || file.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
        if !is_test && code.lines().count() > LINES_MAX {
            faults.push(format!("{name}: more than {LINES_MAX} lines without its tests"));
        }
        let is_barred = NO_STATICS.iter().any(|folder| file.starts_with(folder));
        if is_barred && !is_test && !file.ends_with(THREADS) {
            let found = statics(code).map(|line| format!("{name}: {line}: not here"));
            faults.extend(found);
        }
        for (files, barred) in WALLS {
            if name.to_string().starts_with(files) {
                let used = barred.iter().filter(|module| uses(code, module));
                faults.extend(used.map(|module| format!("{name} must not use {module}")));
            }
        }
        if is_test && !text.contains("EMPTY_FOLDERS") {
            let hint = "hides builds below that folder: use EMPTY_FOLDERS (tests/src/folders.rs)";
            faults.extend(hidden_builds(text).map(|line| format!("{name}: {line}: {hint}")));
        }
        let marks = [concat!("FIX", "ME"), concat!("XX", "X:"), concat!("#[ign", "ore]")];
        for mark in marks {
            if text.contains(mark) {
                faults.push(format!("{name}: contains {mark}"));
            }
        }
    }
    if text.lines().any(|line| line.ends_with([' ', '\t'])) {
        faults.push(format!("{name}: trailing white space"));
    }
}

/// Returns lines of a test that mount a file system over a folder in which a checkout may be. The
/// mount would hide the binary under test.
fn hidden_builds(text: &str) -> impl Iterator<Item = &str> {
    const FOLDERS: [&str; 9] =
        ["/tmp", "/run", "/var", "/var/lib", "/home", "/root", "/mnt", "/opt", "/srv"];
    let is_end = |c: char| !(c.is_alphanumeric() || "/_-.".contains(c));
    text.lines().map(str::trim).filter(move |line| {
        line.contains(concat!("mount ", "-t "))
            && line.split(is_end).any(|word| FOLDERS.contains(&word.trim_end_matches('/')))
    })
}

/// Returns whether code outside of comments uses an item of a module of its crate.
fn uses(code: &str, module: &str) -> bool {
    let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let last = module.rsplit("::").next().unwrap_or(module);
    let paths = [format!("crate::{module}::"), format!("super::{last}::")];
    lines.into_iter().any(|line| paths.iter().any(|path| line.contains(path)))
}

/// Returns lines that define a static variable.
fn statics(code: &str) -> impl Iterator<Item = &str> {
    let mut is_others = false;
    code.lines().map(str::trim).filter(move |line| {
        let begins = line.contains("thread_local!")
            || matches!(*line, "extern \"C\" {" | "unsafe extern \"C\" {");
        is_others = (is_others || begins) && *line != "}";
        !is_others && without_visibility(line).starts_with("static ")
    })
}

/// Returns an item without `pub` and its parenthesized restriction.
fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else { return item };
    let within = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    within.map_or(rest, |(_, rest)| rest).trim_start()
}

/// Maximum number of lines in a file without its tests. A longer file should be split.
const LINES_MAX: usize = 900;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_over_a_folder_with_checkouts_is_found() {
        let mounts = |line: &'static str| hidden_builds(line).count();
        assert_eq!(mounts(concat!("mount ", "-t tmpfs none /tmp && cd /tmp")), 1);
        assert_eq!(mounts(concat!("\"mount ", "-t tmpfs -o ro none /var/lib\"")), 1);
        assert_eq!(mounts(concat!("mount ", "-t tmpfs none /run/netns")), 0);
        assert_eq!(mounts(concat!("mount ", "-t tmpfs none /dev/net && ls /tmp")), 1, "cautious");
        assert_eq!(mounts("ls /tmp"), 0);
    }

    #[test]
    fn statics_are_found_and_those_of_threads_are_not() {
        let code = "static A: u8 = 0;\npub(crate) static B: u8 = 0;\n/// static C\n&'static str\n\
                    std::thread_local! {\n    static D: Cell<u8> = const { Cell::new(0) };\n}\n\
                    static E: u8 = 0;";
        let found: Vec<_> = statics(code).collect();
        assert_eq!(
            found,
            ["static A: u8 = 0;", "pub(crate) static B: u8 = 0;", "static E: u8 = 0;"]
        );
    }

    #[test]
    fn statics_are_found_wherever_they_can_be_seen_from() {
        for visibility in ["", "pub ", "pub(super) ", "pub(in crate::a) "] {
            let code = format!("{visibility}static A: u8 = 0;");
            assert_eq!(statics(&code).collect::<Vec<_>>(), [&*code]);
        }
        assert_eq!(statics("public static\npub(static A").count(), 0);
    }

    #[test]
    fn statics_of_libc_are_not_ours() {
        for block in ["unsafe extern \"C\" {", "extern \"C\" {"] {
            let code = format!("{block}\n    static mut environ: *mut u8;\n}}\nstatic A: u8 = 0;");
            assert_eq!(statics(&code).collect::<Vec<_>>(), ["static A: u8 = 0;"]);
        }
        for code in ["pub unsafe extern \"C\" fn f() {", "unsafe extern \"Rust\" {"] {
            let code = format!("{code}\n    static A: u8;\n}}");
            assert_eq!(statics(&code).collect::<Vec<_>>(), ["static A: u8;"], "{code}");
        }
    }

    #[test]
    fn a_wall_is_for_code_and_not_for_comments() {
        let code = "use crate::engine::Engine;\n/// See [`crate::poller::Poller`].\n\
                    let a = crate::wire::len();";
        assert!(uses(code, "engine") && uses(code, "wire"));
        for beside in ["use super::super::data::Data;", "use super::data::Data;"] {
            assert!(uses(beside, "net::data") && !uses(beside, "net::control"));
        }
        assert!(
            uses("use crate::net::data::mtu;", "net::data")
                && !uses("use crate::net::mtu;", "net::data")
        );
        assert!(!uses(code, "poller") && !uses(code, "gine"));
    }

    #[test]
    fn programs_must_forbid_unsafe_code_as_libraries() {
        let package = std::env::temp_dir().join(format!("towpath-tidy-{}", std::process::id()));
        std::fs::create_dir_all(package.join("src")).unwrap();
        std::fs::write(package.join("src/lib.rs"), "#![forbid(unsafe_code)]\n").unwrap();
        assert_eq!(roots_with_unsafe(&package).unwrap(), [""; 0]);
        std::fs::write(package.join("src/main.rs"), "fn main() {}\n").unwrap();
        let faults = roots_with_unsafe(&package).unwrap();
        std::fs::remove_dir_all(&package).unwrap();
        assert!(faults.len() == 1 && faults[0].contains("src/main.rs"), "{faults:?}");
    }
}
