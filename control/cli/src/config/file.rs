//! Configuration files of routers, with the rules of the file that `acl` names.

use std::path::{Path, PathBuf};

use anyhow::Result;
use towpath_config::{ConfigConflict, ConfigFile, FileOption, RouterConfig};
use towpath_filter::RuleList;
use towpath_router::Plan;

use crate::error::{ExitCode, Failure};

/// A configuration file that was read and parsed.
#[derive(Debug, Clone)]
pub struct LoadedFile {
    /// Path of the file, for messages.
    path: PathBuf,
    file: ConfigFile,
}

impl LoadedFile {
    /// Reads a file, and the file of rules that it names. Relative paths in the file are relative
    /// to its folder.
    ///
    /// # Errors
    /// Returns the first error, with its line and column in the file.
    pub fn read(path: &Path, options: &[FileOption]) -> Result<Self> {
        let file = ConfigFile::parse(&read(path)?, options)
            .map_err(|error| usage(format!("{}: {error}", path.display())))?;
        let mut loaded = Self { path: path.to_owned(), file };
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let LoadedFile { file: ConfigFile { config, acl, .. }, .. } = &mut loaded;
        config.resolve_paths(folder);
        if let Some(acl) = acl {
            config.rules = read_rules(&path.parent().unwrap_or(Path::new("")).join(acl))?;
        }
        Ok(loaded)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &RouterConfig {
        &self.file.config
    }

    /// Checks that all parts of the file are consistent.
    ///
    /// # Errors
    /// Returns the first inconsistency, with its line and column in the file.
    pub fn check(&self) -> Result<Plan> {
        self.file.config.check().map_err(|conflict| self.conflict(&conflict))
    }

    /// Converts a conflict to an error with its place in the file.
    pub fn conflict(&self, conflict: &ConfigConflict) -> anyhow::Error {
        usage(format!("{}: {}", self.path.display(), self.file.place(conflict)))
    }
}

/// Reads a file of rules.
///
/// # Errors
/// Returns the first error, with its line and column in the file.
pub fn read_rules(path: &Path) -> Result<RuleList> {
    let text = read(path)?;
    RuleList::parse(&text).map_err(|error| usage(format!("{}: {error}", path.display())))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| usage(format!("{}: {error}", path.display())))
}

fn usage(why: String) -> anyhow::Error {
    Failure::error(ExitCode::Usage, why)
}
