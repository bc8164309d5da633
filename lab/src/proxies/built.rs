//! Programs of the measurement.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace;

/// Paths of the programs, and the folders that peers are built from and into.
pub struct Built {
    pub root: PathBuf,
    pub target: PathBuf,
    pub towpath: PathBuf,
    pub crowd: PathBuf,
    pub load: PathBuf,
}

impl Built {
    pub fn new(root: &Path) -> Result<Self> {
        let target = workspace::target(root);
        let packages = ["towpath-cli", "towpath-tests", "towpath-bench-load"];
        let named = packages.iter().flat_map(|package| ["-p", package]);
        let what: Vec<_> = ["--bins"].into_iter().chain(named).collect();
        let release = workspace::build_release(root, &what)?;
        let program = |name: &str| release.join(name);
        Ok(Self {
            root: root.to_owned(),
            towpath: program("towpath"),
            crowd: program("crowd"),
            load: program("load"),
            target,
        })
    }
}
