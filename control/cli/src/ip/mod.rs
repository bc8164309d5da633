//! Implements `towpath ip`, which shows and changes addresses, routes, neighbors and links of a
//! running stack. Its syntax and output are those of ip(8).
//!
//! `grammar` parses commands; `text`, `json` and `lookup` format the output as iproute2 does.
//! `monitor` prints changes, and `monitored` parses its words.

mod args;
mod grammar;
mod json;
mod lookup;
mod monitor;
mod monitored;
mod text;

use anyhow::{Context, Result};
use towpath_model::{Change, Client, Error, Net, Port, RequestFault, RouteLookup, Runs};

use crate::error::{ExitCode, Failure};

pub use args::{IpArgs, WhichRun, as_options};
use grammar::{Command, Look};
pub use grammar::{object_verbs, objects};

/// Maximum number of commands in a batch file. All of them must fit into one request.
const BATCH_MAX: usize = 50_000;

/// Runs the command `towpath ip`, and returns its exit status.
pub fn ip(args: &IpArgs) -> Result<u8> {
    match &args.batch {
        Some(file) => batch(args, file),
        None => one(args),
    }
}

fn one(args: &IpArgs) -> Result<u8> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match grammar::parse(&words, args.family()).map_err(usage)? {
        Command::Show(look) => {
            let client = args.which.client_to_look().map_err(no_answer)?;
            let net = client.net().map_err(no_answer)?;
            let ports = match &look {
                Look::Links { .. } if args.statistics => client.ports().map_err(no_answer)?,
                _ => Vec::new(),
            };
            show(args, &look, &net, &ports)
        }
        Command::Get(lookup) => get(args, lookup),
        Command::Monitor(wanted) => monitor::monitor(args, &wanted),
        Command::Change(changes) => {
            let client = args.which.client().map_err(no_answer)?;
            match client.apply(&changes) {
                Ok(_) => Ok(0),
                Err(Error::Refused(fault)) if fault.at.is_some() => refused(&fault, &fault.message),
                Err(error) => Err(no_answer(error)),
            }
        }
    }
}

/// Prints the route to a destination (`ip route get`).
fn get(args: &IpArgs, lookup: RouteLookup) -> Result<u8> {
    let client = args.which.client_to_look().map_err(no_answer)?;
    let found = client.route(lookup.clone()).map_err(|error| match error {
        Error::Refused(fault) if fault.code.as_str() == "no-route" => {
            let why = format!("RTNETLINK answers: {}", fault.message);
            Failure::error(ExitCode::Usage, why)
        }
        Error::Refused(fault) if fault.code.as_str() == "no-device" => usage(fault.message),
        error => no_answer(error),
    })?;
    match args.json {
        true => crate::output::write_json(&lookup::json(&lookup, &found, args.pretty)?)?,
        false => crate::output::write_text(&lookup::text(&lookup, &found, args.oneline))?,
    }
    Ok(0)
}

fn show(args: &IpArgs, look: &Look, net: &Net, ports: &[Port]) -> Result<u8> {
    if let Some(dev) = look.dev()
        && !net.interfaces.iter().any(|interface| interface.name.as_str() == dev)
    {
        let error = match look {
            Look::Addresses { .. } | Look::Links { .. } => {
                format!("Device \"{dev}\" does not exist.")
            }
            Look::Routes(_) | Look::Neighbors { .. } => format!("Cannot find device \"{dev}\""),
        };
        return Err(usage(error));
    }
    let shape = text::Shape {
        family: args.family(),
        brief: args.brief,
        oneline: args.oneline,
        statistics: args.statistics,
        pretty: args.pretty,
        ports,
    };
    match args.json {
        true => crate::output::write_json(&json::document(look, net, shape)?)?,
        false => crate::output::write_text(&text::document(look, net, shape))?,
    }
    Ok(0)
}

/// Applies all commands of a batch file as one change. If one fails, none is applied.
fn batch(args: &IpArgs, file: &str) -> Result<u8> {
    if !args.words.is_empty() {
        return Err(usage(format!(
            "--batch: the commands are in {file}, and {:?} is not",
            args.words[0]
        )));
    }
    let text = match file {
        "-" => std::io::read_to_string(std::io::stdin()).context("standard input"),
        file => std::fs::read_to_string(file).with_context(|| format!("Cannot open file {file:?}")),
    };
    let text = text.map_err(|error| usage(format!("{error:#}")))?;
    let mut lines = Vec::new();
    let mut changes: Vec<Change> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let words: Vec<&str> =
            line.split_whitespace().take_while(|w| !w.starts_with('#')).collect();
        if words.is_empty() {
            continue;
        }
        let at = |why: String| usage(format!("{why}\nCommand failed {file}:{number}"));
        match grammar::parse(&words, args.family()).map_err(at)? {
            Command::Change(made) => {
                lines.resize(changes.len() + made.len(), number);
                changes.extend(made);
            }
            Command::Show(_) | Command::Get(_) | Command::Monitor(_) => {
                return Err(at(
                    "a batch is one change: it may add, delete and set, not show".into()
                ));
            }
        }
        if changes.len() > BATCH_MAX {
            return Err(at(format!("a batch may have {BATCH_MAX} changes")));
        }
    }
    let client = args.which.client().map_err(no_answer)?;
    match client.apply(&changes) {
        Ok(_) => Ok(0),
        Err(Error::Refused(fault)) if fault.at.is_some() => {
            let number = fault.at.and_then(|at| lines.get(at)).copied().unwrap_or_default();
            let why = format!(
                "{}\nCommand failed {file}:{number}, and nothing is changed",
                fault.message
            );
            refused(&fault, &why)
        }
        Err(error) => Err(no_answer(error)),
    }
}

/// Returns the error for a change that the stack rejected. Its exit status is the one that ip(8)
/// has for errors of the kernel, or for a device that does not exist.
fn refused(fault: &RequestFault, why: &str) -> Result<u8> {
    match fault.code.as_str() {
        "no-device" => Err(usage(why.to_owned())),
        _ => Err(Failure::error(ExitCode::Usage, format!("Error: {why}"))),
    }
}

fn usage(why: String) -> anyhow::Error {
    Failure::error(ExitCode::IpUsage, why)
}

/// Adds ip's exit status to an error about a run that does not exist or does not answer.
pub fn no_answer(error: Error) -> anyhow::Error {
    let code = match error {
        Error::NoRun(_) | Error::Several(_) | Error::NotRoot(_) | Error::Foreign(_) => {
            ExitCode::IpUsage
        }
        _ => ExitCode::Usage,
    };
    let text = match &error {
        Error::Refused(fault) => format!("the run {}", fault.message),
        error => error.to_string(),
    };
    Failure::error(code, text)
}

impl WhichRun {
    /// Returns the selected run for a query. If exactly one run answers, returns it, and tells the
    /// user about runs that do not answer.
    ///
    /// # Errors
    /// Fails if there is no run, or if there are several and none was selected.
    pub fn client_to_look(&self) -> Result<Client, Error> {
        let (client, silent) = self.to_look()?;
        for error in silent {
            crate::messages::error(&format!("left out: {error}"));
        }
        Ok(client)
    }

    /// Does the same as [`WhichRun::client_to_look`], but does not tell the user about runs that do
    /// not answer.
    ///
    /// # Errors
    /// Fails as [`WhichRun::client_to_look`] does.
    pub fn client_to_look_quietly(&self) -> Result<Client, Error> {
        self.to_look().map(|(client, _)| client)
    }

    fn to_look(&self) -> Result<(Client, Vec<Error>), Error> {
        match self.run.is_some() || self.name.is_some() {
            true => Ok((self.named()?, Vec::new())),
            false => self.runs().only_that_answers(),
        }
    }

    /// Returns the selected run for a change. The selection must be unambiguous.
    ///
    /// # Errors
    /// Fails if there is no run, if there are several and none was selected, or if runs of another
    /// user were selected.
    pub fn client(&self) -> Result<Client, Error> {
        match self.user {
            Some(user) if self.runs() != Runs::own() => Err(Error::Foreign(user)),
            _ => self.named(),
        }
    }

    fn named(&self) -> Result<Client, Error> {
        match (self.run, &self.name) {
            (Some(pid), _) => self.runs().of_process(pid),
            (None, Some(name)) => self.runs().named(name),
            (None, None) => self.runs().only(),
        }
    }

    fn runs(&self) -> Runs {
        self.user.map_or_else(Runs::own, Runs::of_user)
    }
}
