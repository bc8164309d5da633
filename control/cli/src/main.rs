//! `towpath`: run programs on a TCP/IP stack of their own.
//!
//! `run` is the largest command. The command checks PROGRAM (`program`), starts the stack and its
//! uplink on a thread (`uplink`), and starts PROGRAM with the preload library (`preload`, `child`).
//! PROGRAM is a child of the guardian, which ends processes that PROGRAM leaves behind
//! (`guardian`). `run` then forwards signals to PROGRAM, and waits until all processes have ended
//! (`supervise`, `signals`).
//!
//! `proxy` carries the traffic of a TUN device, or of PROGRAM in a network namespace. `vhost` is
//! the network of a virtual machine. `router` forwards packets between networks (`apps/router`),
//! and `config` shows and changes the configuration of a running one. `ss`, `ip`, `acl`, `port`,
//! `setting`, `stats`, `top` and `metrics` query running instances over the sockets of
//! `towpath-model`, which `served` answers.
//!
//! `load` measures servers, `sim` simulates networks, `script` runs packet scripts. Files are
//! stored in private directories of the user (`towpath_model::folder`). Messages are printed by a
//! separate thread (`messages`), so that a blocked terminal delays nothing.

#![forbid(unsafe_code)]

mod acl;
mod activation;
mod args;
mod child;
mod completions;
mod config;
mod conntrack;
mod counters;
mod dhcp;
mod dns;
mod error;
mod guardian;
mod hints;
mod inline;
mod ip;
mod load;
mod man;
mod messages;
mod metrics;
mod output;
mod port;
mod preload;
mod program;
mod proxy;
mod recording;
mod router;
mod run;
mod screen;
mod script;
mod served;
mod setting;
mod signals;
mod sim;
mod ss;
mod stats;
mod supervise;
mod through;
mod top;
mod unintercepted;
mod uplink;
mod usage;
mod vhost;

use clap::Parser;

use args::{Cli, Command};

fn main() -> std::process::ExitCode {
    if guardian::is_this() {
        return guardian::main();
    }
    let result = match parse().command {
        Command::Run(args) => unprivileged().and_then(|()| run::run(&args)),
        Command::Proxy(args) => unprivileged().and_then(|()| proxy::proxy(&args)),
        Command::Vhost(args) => unprivileged().and_then(|()| vhost::vhost(&args)).map(|()| 0),
        Command::Router(args) => unprivileged().and_then(|()| router::router(&args)).map(|()| 0),
        Command::Ss(args) => unprivileged().and_then(|()| ss::ss(&args)).map(|()| 0),
        Command::Ip(args) => unprivileged().and_then(|()| ip::ip(&args)),
        Command::Acl(args) => unprivileged().and_then(|()| acl::acl(&args)).map(|()| 0),
        Command::Nat(args) => unprivileged().and_then(|()| conntrack::nat::nat(&args)).map(|()| 0),
        Command::Conntrack(args) => {
            unprivileged().and_then(|()| conntrack::conntrack(&args)).map(|()| 0)
        }
        Command::Dns(args) => unprivileged().and_then(|()| dns::dns(&args)).map(|()| 0),
        Command::Setting(args) => unprivileged().and_then(|()| setting::setting(&args)).map(|()| 0),
        Command::Port(args) => unprivileged().and_then(|()| port::port(&args)).map(|()| 0),
        Command::Config(args) => unprivileged().and_then(|()| config::config(&args)),
        Command::Stats(args) => unprivileged().and_then(|()| counters::stats(&args)).map(|()| 0),
        Command::Metrics(args) => unprivileged().and_then(|()| metrics::metrics(&args)).map(|()| 0),
        Command::Top(args) => unprivileged().and_then(|()| top::top(&args)).map(|()| 0),
        Command::Sim(args) => unprivileged().and_then(|()| sim::sim(&args)).map(|()| 0),
        Command::Script(args) => unprivileged().and_then(|()| script::script(&args)),
        Command::Load(args) => unprivileged().and_then(|()| load::load(&args)),
        Command::Man { command } => man::man(&command).map(|()| 0),
        Command::Completions(args) => completions::completions(&args).map(|()| 0),
    };
    let code = result.unwrap_or_else(|error| {
        messages::error(&format!("{error:#}{}", error::advice(&error)));
        error::exit_code(&error)
    });
    code.into()
}

/// Parses the command line. On a usage error, prints it and exits.
fn parse() -> Cli {
    use clap::error::ErrorKind;
    Cli::try_parse_from(ip::as_options(std::env::args_os())).unwrap_or_else(|mut error| {
        usage::name_owners(&mut error);
        let mut words = std::env::args_os().skip(1);
        let word = words.next().unwrap_or_default();
        let is_proxys = word == "proxy" && words.next().is_some_and(|word| word == "run");
        let of_run = (word == "run" || is_proxys) && error.use_stderr();
        let code = match word.to_str() {
            _ if of_run => error::ExitCode::Failed as i32,
            Some("ip" | "acl" | "nat" | "conntrack" | "dns" | "port" | "setting")
                if error.use_stderr() =>
            {
                error::ExitCode::IpUsage as i32
            }
            _ => error.exit_code(),
        };
        if error.kind() == ErrorKind::InvalidSubcommand && program::exists(&word) {
            let word = word.to_string_lossy();
            messages::error(&format!(
                "'{word}' is not one of towpath's commands; to run the program: towpath run -- \
                 {word}"
            ));
        } else {
            // Ignore errors, because standard error may be closed.
            let _ = error.print();
        }
        std::process::exit(code)
    })
}

/// Fails if this program is set-user-ID or set-group-ID. The user chooses PROGRAM and the
/// environment, and would gain the privileges of the file's owner.
fn unprivileged() -> anyhow::Result<()> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    let raised = getuid() != geteuid() || getgid() != getegid();
    anyhow::ensure!(!raised, "towpath must not be set-user-ID or set-group-ID: chmod ug-s");
    Ok(())
}
