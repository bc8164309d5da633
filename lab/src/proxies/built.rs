//! Programs of the measurement.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace;

/// Paths of the programs, and the directories with the peers' sources and builds.
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
        let release = workspace::build_release(
            root,
            &["--bins", "-p", "towpath-cli", "-p", "towpath-tests"],
        )?;
        let load = workspace::build_lab(root, &["towpath-lab-load"])?.join("load");
        let program = |name: &str| release.join(name);
        Ok(Self {
            root: root.to_owned(),
            towpath: program("towpath"),
            crowd: program("crowd"),
            load,
            target,
        })
    }
}
