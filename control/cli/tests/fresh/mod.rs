//! Temporary directories of tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A new temporary directory, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let made = Command::new("mktemp").arg("-d").output().expect("mktemp is in coreutils");
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).expect("a plain path").trim_end().into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
