//! Configuration of a router from a file or from options of the command line.

use std::path::PathBuf;

use anyhow::Result;
use towpath_config::RouterConfig;
use towpath_router::Plan;

use super::args::RouterArgs;
use super::file_options::{OptionValues, file_options, given, with_values};
use crate::config::{LoadedFile, read_rules};
use crate::error::{ExitCode, Failure};

/// Configuration of a router, and the file or options from which it was read.
#[derive(Debug)]
pub struct ConfigSource {
    /// Options, with those and the ports of the file.
    pub args: RouterArgs,
    /// The configuration, with the options.
    pub config: RouterConfig,
    /// Options of the command line.
    pub line: OptionValues,
    file: Option<LoadedFile>,
}

impl ConfigSource {
    /// Reads the configuration that options describe, or the file that they name.
    ///
    /// # Errors
    /// Returns the first error, with its line and column in the file.
    pub fn read(args: &RouterArgs) -> Result<Self> {
        let line = given(std::env::args_os().skip(1))?;
        let Some(path) = &args.config else {
            let mut config = args.config().map_err(usage)?;
            config.options = line.clone();
            // Make the paths absolute, because `towpath config` may show them in another working
            // directory.
            config.resolve_paths(&std::env::current_dir().unwrap_or_default());
            if let Some(acl) = &args.acl {
                config.rules = read_rules(acl)?;
            }
            let args = RouterArgs { port: config.ports.clone(), ..args.clone() };
            return Ok(Self { args, config, line, file: None });
        };
        let file = LoadedFile::read(path, &file_options())?;
        let mut config = file.config().clone();
        config.options.extend(line.clone());
        let args = with_values(path, args.check, &config.options)?;
        let args = RouterArgs { port: config.ports.clone(), ..args };
        Ok(Self { args, config, line, file: Some(file) })
    }

    /// Checks that all parts are consistent, and returns the plan.
    ///
    /// # Errors
    /// Returns the first inconsistency, with its place in the file.
    pub fn check(&self) -> Result<Plan> {
        self.config.check().map_err(|conflict| match &self.file {
            Some(file) => file.conflict(&conflict),
            None => usage(conflict.why),
        })
    }

    /// Returns the absolute path of the file.
    pub fn path(&self) -> Option<PathBuf> {
        let path = self.args.config.as_deref()?;
        Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
    }
}

fn usage(why: String) -> anyhow::Error {
    Failure::error(ExitCode::Usage, why)
}
