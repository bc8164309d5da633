//! Location and contents of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Features of the workspace that no package enables.
pub const FEATURES: [&str; 2] = ["--features", "towpath/intercept"];

/// The workspace folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Returns the target folder for builds in a checkout of the workspace. CARGO_TARGET_DIR applies
/// only to this checkout, because cargo would confuse the crates of two checkouts.
pub fn target(checkout: &Path) -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").filter(|_| checkout == root());
    given.map_or_else(|| checkout.join("target"), Into::into)
}

/// Returns a cargo command for a checkout of the workspace, with its own target folder.
pub fn cargo(checkout: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(checkout).env("CARGO_TARGET_DIR", target(checkout));
    command
}

/// Builds a checkout of the workspace for release. `what` selects packages and targets by cargo's
/// options. Returns the folder with the programs.
pub fn build_release(checkout: &Path, what: &[&str]) -> Result<PathBuf> {
    let arguments = [&["build", "--release"], what].concat();
    ensure!(cargo(checkout, &arguments).status()?.success(), "the release build failed");
    Ok(target(checkout).join("release"))
}

/// The workspace of measurements.
pub fn lab(root: &Path) -> PathBuf {
    root.join("lab")
}

/// Returns a cargo command for the workspace in `lab`, with a target folder inside the main one.
pub fn cargo_lab(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(lab(root));
    command.env("CARGO_TARGET_DIR", target(root).join("lab"));
    command
}

/// Builds packages of the workspace in `lab` for release. Returns the folder with the programs.
pub fn build_lab(root: &Path, packages: &[&str]) -> Result<PathBuf> {
    let named = packages.iter().flat_map(|package| ["-p", package]);
    let arguments: Vec<_> = ["build", "--release"].into_iter().chain(named).collect();
    ensure!(cargo_lab(root, &arguments).status()?.success(), "the build of lab/ failed");
    Ok(target(root).join("lab/release"))
}

/// Returns the folders of other workspaces in the repository: `lab`, and the peers to compare with.
/// Each has its own dependencies and lock file.
pub fn beside(root: &Path) -> Result<Vec<PathBuf>> {
    let peers = lab(root).join("peers");
    let entries = std::fs::read_dir(&peers).with_context(|| peers.display().to_string())?;
    let folders = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let peers = folders.into_iter().filter(|folder| folder.join("Cargo.toml").exists());
    Ok(std::iter::once(lab(root)).chain(peers).collect())
}

/// Returns the output of `cargo metadata` for the workspace in a folder, including optional
/// dependencies.
pub fn metadata(root: &Path) -> Result<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the files that git tracks, and new ones that it does not ignore, relative to `root`.
pub fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    Ok(String::from_utf8(output.stdout)?.lines().map(PathBuf::from).collect())
}
