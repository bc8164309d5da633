//! What CI runs: one command, quick checks first.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

#[derive(clap::Args)]
pub struct Options {
    /// Only the checks that need no Debian packages and no privileges.
    #[arg(long)]
    quick: bool,
}

/// Runs all of it, or up to the first step that fails, of which all failures are shown.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    step("format", cargo(root, &["fmt", "--all", "--check"]))?;
    crate::tidy::run(root)?;
    crate::licences::run(root)?;
    crate::requirements::run(root)?;
    step(
        "lints",
        cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    )?;
    let mut documentation = cargo(root, &["doc", "--quiet", "--workspace", "--no-deps"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    step("documentation", documentation)?;
    let unit = ["test", "--workspace", "--exclude", "towpath-tests", "--no-fail-fast"];
    step("unit tests", cargo(root, &unit))?;
    let mut several = cargo(root, &["test", "-p", "towpath-preload", "--test", "programs"]);
    several.env(SHARDS, "4");
    step("programs on four shards", several)?;
    let mut one_thread = cargo(root, &["test", "-p", "towpath-preload", "--test", "programs"]);
    one_thread.env(SHARDS, "4").env("TOWPATH_TEST_THREADS_BY_NEED", "1");
    step("programs on four shards of one thread", one_thread)?;
    step("loom", loom(root))?;
    if options.quick {
        return Ok(());
    }
    crate::debian::install()?;
    step("release build", cargo(root, &["build", "--release"]))?;
    // What they test is the release build; they themselves would take as long to build as to run.
    step("real programs", real_programs(root, "3", SEVERAL_AT_A_TIME))?;
    let all = files(&root.join("tests/tests"))?;
    let others: Vec<_> =
        all.iter().map(String::as_str).filter(|it| !SEVERAL_AT_A_TIME.contains(it)).collect();
    step("real programs, one at a time", real_programs(root, "1", &others))?;
    let mut two = real_programs(root, "2", WITH_TWO_SHARDS);
    two.env(SHARDS, "2");
    step("real programs on two shards", two)?;
    let mut inline = real_programs(root, "2", INLINE);
    inline.env("TOWPATH_TEST_HOSTING", "inline");
    step("real programs with the stack in them", inline)?;
    println!("== counts");
    if let Err(why) = crate::counts::is_possible() {
        println!("== counts: left out, for this machine does not let one count: {why:#}");
        return Ok(());
    }
    let start = Instant::now();
    crate::counts::run(root, &crate::counts::Options::default())?;
    println!("== counts: {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// How many shards an engine has in tests that ask for none.
const SHARDS: &str = "TOWPATH_TEST_SHARDS";
/// Of the tests with real programs, those that CI runs once more with two shards. All of them should pass.
const WITH_TWO_SHARDS: &[&str] = &["http", "languages", "oracle"];
/// The same with `--inline`, which does not fit all of them.
const INLINE: &[&str] = &["http", "languages", "leaving", "stress"];

/// Tests with real programs that mostly wait and time nothing: three of them at once on the two cores that CI has.
const SEVERAL_AT_A_TIME: &[&str] =
    &["http", "languages", "leaving", "network", "oracle", "processes"];

/// Some files of tests with real programs.
fn real_programs(root: &Path, threads: &str, names: &[&str]) -> Command {
    let mut command = cargo(root, &["test", "-p", "towpath-tests", "--no-fail-fast"]);
    command.args(names.iter().flat_map(|name| ["--test", name]));
    command.args(["--", "--test-threads", threads]);
    command
}

/// The names of the test files in a folder.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name();
        names.extend(name.to_str().and_then(|name| name.strip_suffix(".rs")).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(root);
    command
}

/// The rings and doorbells under every interleaving; its own target folder, since the flag would
/// rebuild everything else.
fn loom(root: &Path) -> Command {
    let test = ["test", "--profile", "loom", "-p", "towpath-ring", "--lib", "loom"];
    let mut command = cargo(root, &test);
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", root.join("target/loom"));
    command
}

fn step(name: &str, mut command: Command) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("{name}: {command:?}"))?;
    ensure!(status.success(), "{name} failed: {command:?}");
    println!("== {name}: {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}
