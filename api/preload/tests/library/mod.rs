//! Finds or builds the libraries that tests load into programs. Cargo does not build them with the
//! tests, because no test depends on a cdylib.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Variable with the path of a prebuilt preload library, as for `control/cli/build.rs`.
const GIVEN: &str = "TOWPATH_PRELOAD_LIBRARY";

/// Returns the preload library: the prebuilt one, or that of this test's profile.
pub fn preload() -> PathBuf {
    let Some(given) = std::env::var_os(GIVEN).map(PathBuf::from) else {
        return built("towpath-preload", profile());
    };
    assert!(given.is_file(), "{GIVEN}: {} is not a file", given.display());
    given
}

/// Returns the library of a package in a profile's folder. Calls cargo unless the library is
/// current, or the prebuilt preload library is in the same folder. A runner with a prebuilt library
/// has built both. If it runs lints meanwhile, cargo would wait for their lock.
pub fn built(package: &str, profile: &Path) -> PathBuf {
    let library = profile.join(format!("lib{}.so", package.replace('-', "_")));
    let given = std::env::var_os(GIVEN).map(PathBuf::from);
    let is_beside = given.is_some_and(|given| given.parent() == library.parent());
    if is_beside && library.is_file() || is_current(&library) {
        return library;
    }
    let target = profile.parent().expect("the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("run cargo").success(), "{package} does not build");
    assert!(library.is_file(), "cargo has built no {}", library.display());
    library
}

/// Returns the folder of this test's profile: TARGET/PROFILE for TARGET/PROFILE/deps/TEST.
pub fn profile() -> &'static Path {
    static EXE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let exe = EXE.get_or_init(|| std::env::current_exe().expect("this executable"));
    exe.ancestors().nth(2).expect("a profile's folder")
}

/// Returns whether the library is newer than its sources, which cargo lists in a `.d` file.
/// Hundreds of tests start as separate processes, and each `cargo build` takes a lock and half a
/// second.
fn is_current(library: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let is_older = |path: &Path, than: SystemTime| modified(path).is_ok_and(|time| time <= than);
    let list = std::fs::read_to_string(library.with_extension("d"));
    let (Ok(built), Ok(list)) = (modified(library), list) else { return false };
    let Some((_, sources)) = list.split_once(": ") else { return false };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifests = ["Cargo.toml", "Cargo.lock"].map(|name| root.join(name));
    // A path with a blank is split into names of missing files, so cargo is called then.
    sources.split_whitespace().all(|source| is_older(Path::new(source), built))
        && manifests.iter().all(|manifest| is_older(manifest, built))
}
