//! Test binaries of the workspace, and the tests in each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::libraries::{self, debug_cargo};
use super::step::{self, STEP_LIMIT};
use crate::workspace::{FEATURES, target};

/// A test binary that supports libtest's command line.
#[derive(Debug)]
pub struct Binary {
    pub package: String,
    /// Name of the cargo target: a library, program, test file or example.
    pub target: String,
    pub path: PathBuf,
    /// Working directory of its tests: the package's folder, as with `cargo test`.
    pub folder: PathBuf,
}

/// A test of a binary.
#[derive(Clone, Debug)]
pub struct Test {
    pub binary: Arc<Binary>,
    /// Path of the test function.
    pub name: String,
}

impl Test {
    /// Returns the command that runs only this test.
    pub fn command(&self) -> Command {
        let Binary { path, folder, .. } = &*self.binary;
        let mut command = Command::new(path);
        // `cargo test` sets both variables, for code that reads files of its package or calls
        // cargo.
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

/// Debug builds of the workspace.
pub struct Builds {
    pub tests: Vec<Arc<Binary>>,
    /// The binary `towpath`.
    pub towpath: PathBuf,
    /// Preload library for tests. Otherwise, each test would call cargo for its path.
    pub preload: PathBuf,
}

/// Kinds of targets. `cargo test --no-run` would not build the shared libraries, and
/// `--all-targets` would add a benchmark of each library, though there are none.
pub const KINDS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// Builds and lints the workspace. Warnings and errors are written to standard error.
pub fn build(root: &Path) -> Result<Builds> {
    let log = target(root).join("gate");
    std::fs::create_dir_all(&log).with_context(|| log.display().to_string())?;
    let log = log.join("artifacts.json");
    libraries::build(root)?;
    let mut command = debug_cargo(root, &["build", "--workspace"]);
    command.args(FEATURES).args(KINDS).arg("--message-format=json-render-diagnostics");
    libraries::lint(&mut command)?;
    command.stdout(std::fs::File::create(&log).with_context(|| log.display().to_string())?);
    let end = step::run(&mut command, STEP_LIMIT)?;
    ensure!(end.is_success(), "{end}: {command:?}");
    of_messages(&std::fs::read_to_string(&log)?)
}

/// Parses the paths of built files from cargo's messages.
fn of_messages(messages: &str) -> Result<Builds> {
    let (mut tests, mut towpath, mut preload) = (Vec::new(), None, None);
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        let Some(id) = message["package_id"].as_str() else { continue };
        let package = package(id);
        let is_test = message["profile"]["test"] == true;
        let executable = message["executable"].as_str();
        if let Some(path) = executable.filter(|_| is_test) {
            let manifest = Path::new(message["manifest_path"].as_str().context("manifest_path")?);
            tests.push(Arc::new(Binary {
                package: package.to_owned(),
                target: message["target"]["name"].as_str().context("target")?.to_owned(),
                path: path.into(),
                folder: manifest.parent().context("a folder")?.to_owned(),
            }));
        } else if package == "towpath-cli" && executable.is_some() {
            towpath = executable.map(PathBuf::from);
        } else if package == "towpath-preload" {
            let files = message["filenames"].as_array().into_iter().flatten();
            let library = files.filter_map(Value::as_str).find(|file| file.ends_with(".so"));
            preload = library.map(PathBuf::from).or(preload);
        }
    }
    let towpath = towpath.context("cargo built no towpath")?;
    let preload = preload.context("cargo built no libtowpath_preload.so")?;
    Ok(Builds { tests, towpath, preload })
}

/// Returns the package name in a package id: `path+file:///x/core/tcp#towpath-tcp@0.1.0`, or
/// `…/xtask#0.1.0` if the folder has the package's name.
fn package(id: &str) -> &str {
    let (path, fragment) = id.rsplit_once('#').unwrap_or(("", id));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

/// Returns the tests of `binaries` that `is_wanted` selects.
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
    fn tests_and_what_they_start_are_found_among_messages() {
        let message = |package: &str, test: bool, executable: Option<&str>, file: &str| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": format!("path+file:///w/a/b#{package}@0.1.0"),
                "manifest_path": "/w/a/b/Cargo.toml", "target": { "name": "rules" },
                "profile": { "test": test }, "executable": executable, "filenames": [file],
            })
            .to_string()
        };
        let mut messages = vec![
            message("towpath-tcp", true, Some("/t/a"), "/t/a"),
            message("towpath-cli", false, Some("/t/towpath"), "/t/towpath"),
            message("towpath-cli", true, Some("/t/cli"), "/t/cli"),
            message("towpath-link", false, Some("/t/link"), "/t/link"),
            r#"{"reason":"build-finished"}"#.to_owned(),
        ];
        assert!(of_messages(&messages.join("\n")).is_err(), "there is no preload library");
        messages.push(message("towpath-preload", false, None, "/t/lib.so"));
        let builds = of_messages(&messages.join("\n")).unwrap();
        let [tcp, cli] = &builds.tests[..] else { panic!("{:?}", builds.tests) };
        assert_eq!((&*tcp.package, &*tcp.target), ("towpath-tcp", "rules"));
        assert_eq!((&*tcp.path, &*tcp.folder), (Path::new("/t/a"), Path::new("/w/a/b")));
        assert_eq!(cli.package, "towpath-cli");
        assert_eq!(builds.towpath, Path::new("/t/towpath"));
        assert_eq!(builds.preload, Path::new("/t/lib.so"));
        assert!(of_messages("Compiling x").is_err());
    }

    #[test]
    fn a_package_id_names_its_package() {
        assert_eq!(package("path+file:///w/control/cli#towpath-cli@0.1.0"), "towpath-cli");
        assert_eq!(package("path+file:///w/xtask#0.1.0"), "xtask");
    }
}
