//! The test binaries of the workspace, and the tests that each has.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::step::{self, STEP_LIMIT};
use crate::workspace::{cargo, target};

/// A binary of tests that speaks libtest's command line.
#[derive(Debug)]
pub struct Binary {
    pub package: String,
    /// The library, program, file of tests or example that it was built from.
    pub target: String,
    pub path: PathBuf,
    /// Working directory of its tests: the package's folder, as `cargo test` has it.
    pub folder: PathBuf,
}

/// A test of a binary.
#[derive(Clone, Debug)]
pub struct Test {
    pub binary: Arc<Binary>,
    /// The path of its function.
    pub name: String,
}

impl Test {
    /// The command that runs this test alone.
    pub fn command(&self) -> Command {
        let Binary { path, folder, .. } = &*self.binary;
        let mut command = Command::new(path);
        // `cargo test` sets these two for code that looks for its files when it runs.
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).env("CARGO", env!("CARGO"));
        command.args(["--exact", &self.name, "--show-output"]);
        command
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Binary { package, target, .. } = &*self.binary;
        write!(f, "{package} {target} {}", self.name)
    }
}

/// Builds all tests of the workspace. Warnings and errors go to the chore's standard error.
pub fn build(root: &Path, arguments: &[&str]) -> Result<Vec<Arc<Binary>>> {
    let log = target(root).join("gate");
    std::fs::create_dir_all(&log).with_context(|| log.display().to_string())?;
    let log = log.join("artifacts.json");
    let mut command =
        cargo(root, &["test", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(arguments);
    command.stdout(std::fs::File::create(&log).with_context(|| log.display().to_string())?);
    let end = step::run(&mut command, STEP_LIMIT)?;
    ensure!(end.is_success(), "{end}: {command:?}");
    of_messages(&std::fs::read_to_string(&log)?)
}

/// The test binaries that cargo's messages name.
fn of_messages(messages: &str) -> Result<Vec<Arc<Binary>>> {
    let mut all = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        let is_test = message["profile"]["test"] == true;
        let Some(path) = message["executable"].as_str().filter(|_| is_test) else { continue };
        let manifest = Path::new(message["manifest_path"].as_str().context("manifest_path")?);
        let id = message["package_id"].as_str().context("package_id")?;
        all.push(Arc::new(Binary {
            package: package(id).to_owned(),
            target: message["target"]["name"].as_str().context("target")?.to_owned(),
            path: path.into(),
            folder: manifest.parent().context("a folder")?.to_owned(),
        }));
    }
    Ok(all)
}

/// The name in a package id: `path+file:///x/core/tcp#towpath-tcp@0.1.0`, or `…/xtask#0.1.0` where
/// the folder has the package's name.
fn package(id: &str) -> &str {
    let (path, fragment) = id.rsplit_once('#').unwrap_or(("", id));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

/// The tests of some binaries for which `is_wanted` is true.
pub fn tests(
    binaries: &[Arc<Binary>],
    env: &[(&str, &str)],
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Test>> {
    let mut all = Vec::new();
    for binary in binaries {
        let names = list(binary, env)?;
        let wanted = names.into_iter().filter(|name| is_wanted(name));
        all.extend(wanted.map(|name| Test { binary: Arc::clone(binary), name }));
    }
    Ok(all)
}

fn list(binary: &Binary, env: &[(&str, &str)]) -> Result<Vec<String>> {
    let mut command = Command::new(&binary.path);
    command.args(["--list", "--format", "terse"]).current_dir(&binary.folder);
    command.envs(env.iter().copied()).stdin(Stdio::null());
    let output = command.output().with_context(|| binary.path.display().to_string())?;
    let listing = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command:?}: {}\n{listing}", output.status);
    let mut names = Vec::new();
    for line in listing.lines() {
        match line.rsplit_once(": ") {
            Some((name, "test")) => names.push(name.to_owned()),
            Some((_, "benchmark")) => {}
            _ => bail!("{}: expected `NAME: test`, got {line:?}", binary.path.display()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_among_messages() {
        let message = |executable: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///w/core/tcp#towpath-tcp@0.1.0", "manifest_path": "/w/core/tcp/Cargo.toml", "target": { "name": "rules" },
                "profile": { "test": test }, "executable": executable,
            })
            .to_string()
        };
        let messages = [
            message("/t/a", true),
            message("/t/b", false),
            r#"{"reason":"build-finished"}"#.into(),
        ];
        let found = of_messages(&messages.join("\n")).unwrap();
        let [binary] = &found[..] else { panic!("{found:?}") };
        assert_eq!(binary.path, Path::new("/t/a"));
        assert_eq!(binary.folder, Path::new("/w/core/tcp"));
        assert_eq!((&*binary.package, &*binary.target), ("towpath-tcp", "rules"));
        assert!(of_messages("Compiling x").is_err());
    }

    #[test]
    fn a_package_id_names_its_package() {
        assert_eq!(package("path+file:///w/control/cli#towpath-cli@0.1.0"), "towpath-cli");
        assert_eq!(package("path+file:///w/xtask#0.1.0"), "xtask");
    }
}
