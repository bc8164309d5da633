//! `towpath`: run programs on a TCP/IP stack of their own.
//!
//! `run` is the whole of it: look at PROGRAM (`program`), build the stack and its uplink on a thread
//! (`uplink`, `tap_network`), start PROGRAM with the preload library (`preload`, `child`), and stay between it and
//! the outside until both have ended (`supervise`, `signals`). `ss` asks running instances over a
//! socket (`instance`). What is kept in files lies in folders that are this user's alone (`folder`);
//! what there is to say goes by way of `messages`, which nothing waits for.

#![forbid(unsafe_code)]

mod args;
mod child;
mod error;
mod folder;
mod host_routes;
mod instance;
mod messages;
mod output;
mod preload;
mod program;
mod run;
mod signals;
mod ss;
mod stats;
mod supervise;
mod tap_network;
mod uplink;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};

fn main() -> std::process::ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => unprivileged().and_then(|()| run::run(&args)),
        Command::Ss(args) => unprivileged().and_then(|()| ss::ss(&args)).map(|()| 0),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "towpath", &mut script);
            output::write(&script).map(|()| 0)
        }
    };
    let code = result.unwrap_or_else(|error| {
        messages::error(&format!("{error:#}"));
        error::exit_code(&error)
    });
    code.into()
}

/// `Err` when this program was given rights that its user does not have. PROGRAM and the environment
/// are the user's choice, so the rights would be the user's.
fn unprivileged() -> anyhow::Result<()> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    let raised = getuid() != geteuid() || getgid() != getegid();
    anyhow::ensure!(!raised, "towpath must not be set-user-ID or set-group-ID: chmod ug-s");
    Ok(())
}
