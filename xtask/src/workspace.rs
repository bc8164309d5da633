//! Where the workspace is, and what it is made of.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The workspace folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Packages that are beside the workspace, with dependencies and a lock file of their own.
pub const BESIDE: &[&str] = &["bench/peers/smoltcp"];

/// What `cargo metadata` says about the workspace in a folder and its dependencies, the optional ones included.
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
