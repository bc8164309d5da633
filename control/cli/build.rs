//! Builds the preload libraries, which are embedded in the binary so that `towpath` is a single
//! file.
//!
//! Runs a nested `cargo build`, because Cargo has no stable way to depend on the file of a cdylib.
//! A packager who builds the libraries separately sets their paths in TOWPATH_PRELOAD_LIBRARY and
//! TOWPATH_INLINE_LIBRARY.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let given = LIBRARIES.map(|(_, variable)| given(variable));
    // Do not watch the built libraries. Because they are newer than the start of this build script,
    // Cargo would run the script again in every build.
    let folder = given.iter().any(Option::is_none).then(build);
    let mut hasher = DefaultHasher::new();
    for ((package, variable), given) in LIBRARIES.into_iter().zip(given) {
        let file = format!("lib{}.so", package.replace('-', "_"));
        let library = given.unwrap_or_else(|| folder.as_ref().expect("built").join(file));
        std::fs::read(&library).expect("the library was built").hash(&mut hasher);
        println!("cargo:rustc-env={variable}={}", library.display());
    }
    println!("cargo:rustc-env=TOWPATH_PRELOAD_HASH={:016x}", hasher.finish());
    println!("cargo:rustc-env=TOWPATH_VERSION={}", version());
}

/// Packages of the preload libraries, and the environment variables in which a packager passes the
/// path of each library.
const LIBRARIES: [(&str, &str); 2] =
    [("towpath-preload", "TOWPATH_PRELOAD_LIBRARY"), ("towpath-inline", "TOWPATH_INLINE_LIBRARY")];

/// Returns the path of a library that was built separately. `None` if its environment variable is
/// not set.
fn given(variable: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={variable}");
    let path = std::env::var_os(variable)?;
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| panic!("{variable} is not a file"));
    println!("cargo:rerun-if-changed={}", path.display());
    Some(path)
}

/// Returns the version of the package, followed by the commit if the sources are in a git
/// repository.
fn version() -> String {
    let version = variable("CARGO_PKG_VERSION");
    match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    }
}

fn commit() -> Option<String> {
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Ignore a git repository that contains an unpacked source archive, because its commits are not
    // commits of towpath.
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root {
        return None;
    }
    // Watch the log of HEAD, which grows with each commit and checkout. In a repository without
    // logs, the branch's file or packed-refs changes. Skip missing files, because Cargo would run
    // the script in every build.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_else(|| "HEAD".into());
    for name in ["HEAD", "logs/HEAD", &branch, "packed-refs"] {
        let path = git(&["rev-parse", "--git-path", name]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}

/// Builds the preload libraries, and returns the directory that contains them.
fn build() -> PathBuf {
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    const SOURCES: [&str; 9] = [
        "api",
        "apps",
        "client",
        "core",
        "devices",
        "engine",
        "memory",
        "Cargo.toml",
        "Cargo.lock",
    ];
    for source in SOURCES {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    // Use a separate target directory, because the outer build holds the lock of the usual one. All
    // profiles of the outer build share this directory, because the libraries are the same in each
    // profile.
    let out = PathBuf::from(variable("OUT_DIR"));
    let usual = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let target_dir = usual.unwrap_or(&out).join("preload");
    let target = variable("TARGET");
    let status = Command::new(variable("CARGO"))
        .args(["build", "--release", "--quiet", "--target", &target])
        .args(LIBRARIES.iter().flat_map(|(package, _)| ["--package", package]))
        .arg("--target-dir")
        .arg(&target_dir)
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        // Remove the flags for the binary, because some of them break a shared library (crt-static,
        // coverage). Remove the workspace wrapper, because it is a linter under clippy.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .status()
        .expect("cargo runs, as it ran this");
    assert!(status.success(), "building the libraries failed");
    target_dir.join(target).join("release")
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
