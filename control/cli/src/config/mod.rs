//! `towpath config`: the configuration of a running router, shown, compared and changed.

mod file;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};
use towpath_config::{ConfigDelta, ConfigFile, RouterConfig, Setting};
use towpath_model::{Client, Error, RunningConfig};

use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};
use crate::output;
use crate::router::{file_options, is_list};

pub use file::{LoadedFile, read_rules};

/// Options of `towpath config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    pub which: WhichRun,
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration as a file
    Show {
        /// Print the configuration of the running router (default)
        #[arg(long, conflicts_with = "file")]
        running: bool,
        /// Print the configuration in a file, with the rules of its access list
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(short, long)]
        json: bool,
    },
    /// Compare the running router with a file
    Diff {
        /// The file; unless given, the one of --config
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(short, long)]
        json: bool,
    },
    /// Change the running router to the configuration in a file: either all of it, or nothing
    Apply {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Undo the change after this time, unless `towpath config confirm` comes before
        #[arg(long, value_name = "SECONDS")]
        confirm: Option<u32>,
    },
    /// Keep a change of apply --confirm
    Confirm,
    /// Undo the latest apply
    Rollback,
    /// Write the configuration of the running router to a file
    Save {
        /// The file, which is replaced
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// Text of `towpath config --help` before the options.
pub const ABOUT: &str = "\
Show, compare and change the configuration of a running router.

A file has the keys of docs/config.md. `show` prints what a router or a file has, as a file. \
`diff` also shows what `towpath ip`, `acl` and `nat` have changed. `apply` checks the whole file \
first, and undoes all changes if one fails. Ports and flows that stay lose no packet. `apply` \
refuses to change keys that take effect when the router starts.";

/// Text of `towpath config --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath config show
  towpath config diff office.toml
  towpath config apply office.toml --confirm 60
  towpath config confirm
  towpath config --name office save office.toml

Exit status:
  0  done; diff: no difference
  1  diff: there are differences
  2  a wrong word or file, no such router, or the router refused the change";

/// Exit status of `diff` if there are differences, as of diff(1).
const DIFFERENT: u8 = 1;

/// Runs the command, and returns its exit status.
///
/// # Errors
/// Returns any error with a message for the user.
pub fn config(args: &ConfigArgs) -> Result<u8> {
    match &args.command {
        ConfigCommand::Show { file, json, .. } => {
            let text = match file {
                Some(path) => checked(path)?.to_toml(is_list),
                None => running(args)?.text,
            };
            show(&text, *json)?;
        }
        ConfigCommand::Diff { file, json } => return diff(args, file.as_deref(), *json),
        ConfigCommand::Apply { file, confirm } => {
            let text = checked(file)?.to_toml(is_list);
            report(client(args)?.apply_config(&text, *confirm).map_err(failed)?)?;
        }
        ConfigCommand::Confirm => client(args)?.confirm_config().map_err(failed)?,
        ConfigCommand::Rollback => report(client(args)?.rollback_config().map_err(failed)?)?,
        ConfigCommand::Save { file } => save(file, &running(args)?.text)?,
    }
    Ok(0)
}

/// Reads and checks a file.
fn checked(path: &Path) -> Result<RouterConfig> {
    let file = LoadedFile::read(path, &file_options())?;
    file.check()?;
    Ok(file.config().clone())
}

fn client(args: &ConfigArgs) -> Result<Client> {
    args.which.client().map_err(failed)
}

fn running(args: &ConfigArgs) -> Result<RunningConfig> {
    let client = args.which.client_to_look().map_err(failed)?;
    client.config().map_err(failed)
}

fn show(text: &str, is_json: bool) -> Result<()> {
    if !is_json {
        return output::write_text(text);
    }
    let value: Value = toml::from_str(text).context("the configuration cannot be read")?;
    output::write_json(&(serde_json::to_string(&value)? + "\n"))
}

/// Prints the differences between the running router and a configuration file. Without `file`, uses
/// the file with which the router was started.
fn diff(args: &ConfigArgs, file: Option<&Path>, is_json: bool) -> Result<u8> {
    let running = running(args)?;
    let path = file.map(Path::to_owned).or_else(|| running.file.as_deref().map(PathBuf::from));
    let path = path.ok_or_else(|| {
        let why = "the router was started without --config: give a file to compare with";
        usage(why.to_owned())
    })?;
    let parsed = ConfigFile::parse(&running.text, &file_options());
    let parsed = parsed.map_err(|error| usage(format!("the router: {error}")))?;
    let delta = ConfigDelta::between(&parsed.config, &checked(&path)?);
    if is_json {
        output::write_json(&(serde_json::to_string(&delta_json(&delta))? + "\n"))?;
    } else {
        if !delta.is_empty() {
            output::write_text(&format!("--- running router\n+++ {}\n", path.display()))?;
        }
        output::write_text(&delta_text(&delta))?;
    }
    Ok(if delta.is_empty() { 0 } else { DIFFERENT })
}

/// Formats a difference by key, each setting on a line.
fn delta_text(delta: &ConfigDelta) -> String {
    let mut out = String::new();
    for key in keys(delta) {
        for (sign, settings) in [('-', &delta.removed), ('+', &delta.added)] {
            for setting in settings.iter().filter(|setting| setting.key() == key) {
                // Writing to a String cannot fail.
                let _ = writeln!(out, "{sign} {}", towpath_model::printable(&setting.to_string()));
            }
        }
    }
    out
}

fn delta_json(delta: &ConfigDelta) -> Value {
    let values = |settings: &[Setting], key: &str| -> Vec<String> {
        settings.iter().filter(|it| it.key() == key).map(Setting::value).collect()
    };
    let all = keys(delta).into_iter().map(|key| {
        let (running, file) = (values(&delta.removed, &key), values(&delta.added, &key));
        json!({ "key": key, "running": running, "file": file })
    });
    Value::Array(all.collect())
}

/// Returns the keys of a difference.
fn keys(delta: &ConfigDelta) -> BTreeSet<String> {
    delta.iter().map(Setting::key).collect()
}

fn report(count: usize) -> Result<()> {
    match count {
        0 => output::write_text("nothing to change\n"),
        1 => output::write_text("1 setting changed\n"),
        count => output::write_text(&format!("{count} settings changed\n")),
    }
}

/// Writes a file. A regular file is replaced, so that it is never seen half-written; devices and
/// pipes, such as /dev/stdout, are written directly.
fn save(path: &Path, text: &str) -> Result<()> {
    let written = match std::fs::metadata(path) {
        Ok(known) if !known.is_file() => std::fs::write(path, text),
        // The target of a symbolic link is replaced, rather than the link.
        Ok(known) => std::fs::canonicalize(path)
            .and_then(|target| replace(&target, text, Some(known.permissions()))),
        Err(_) => replace(path, text, None),
    };
    written.map_err(|error| usage(format!("{}: {error}", path.display())))
}

/// Replaces a regular file. The new file is created under a name of its own, which must not exist.
fn replace(path: &Path, text: &str, mode: Option<Permissions>) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let mut file = File::options().write(true).create_new(true).open(&new)?;
    let written = mode
        .map_or(Ok(()), |mode| file.set_permissions(mode))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // The error of the write is the one to report.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Converts an error of the router. Its exit status must differ from the status for differences
/// ([`DIFFERENT`]).
fn failed(error: Error) -> anyhow::Error {
    match error {
        Error::Refused(fault) => usage(fault.message),
        error => usage(no_answer(error).to_string()),
    }
}

fn usage(why: String) -> anyhow::Error {
    Failure::error(ExitCode::Usage, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RouterConfig {
        ConfigFile::parse(text, &file_options()).unwrap().config
    }

    #[test]
    fn saves_to_regular_files_and_to_devices() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("towpath_save_{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        save(&file, "a = 1\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        save(&link, "a = 2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a = 2\n");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        let device = folder.join("null");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        save(&device, "a = 3\n").unwrap();
        assert!(!std::fs::metadata(&device).unwrap().is_file(), "the device is still a device");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "no other file is left");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn differences_are_listed_by_key() {
        let port = "[[port]]\nname = 'lan'\ndevice = 'packet:eth1'\naddresses = ['10.1.0.1/24']\n";
        let from = parsed(&format!("shards = 2\nroutes = ['blackhole 10.9.0.0/16']\n{port}"));
        let to =
            parsed(&format!("shards = 4\nrules = ['acl add id 5 action drop']\n{port}mtu = 1400"));
        let delta = ConfigDelta::between(&from, &to);
        let text = "+ port.lan.mtu = 1400\n- routes = blackhole 10.9.0.0/16\n\
                    + rules = acl add id 5 action drop\n- shards = 2\n+ shards = 4\n";
        assert_eq!(delta_text(&delta), text);
        let value = delta_json(&delta);
        assert_eq!(value[3], json!({ "key": "shards", "running": ["2"], "file": ["4"] }));
        assert!(ConfigDelta::between(&to, &to.clone()).is_empty());
    }
}
