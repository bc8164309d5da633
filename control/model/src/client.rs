//! A client of one run.

use std::fmt;

use crate::acl::{Acl, AclChange};
use crate::ask::{NoAnswer, Run, ask_those, runs};
use crate::net::{Change, Net};
use crate::ports::Port;
use crate::request::{Call, Fault, Layer, Reply, RunKind};
use crate::server::is_name;
use crate::sockets::Socket;

/// A run of this user that answers requests. Each request is a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    run: Run,
}

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No run of this user is the one that was named.
    #[error("no `towpath run` or `router` of this user {0}")]
    NoRun(String),
    /// There are several runs, and none was named.
    #[error("several runs may be meant: name one by --run PID or --name NAME{0}")]
    Several(Several),
    /// The run did not answer.
    #[error("the run with process id {0} {1}")]
    NoAnswer(u32, NoAnswer),
    /// The answer is not one of this version of the protocol.
    #[error("the run with process id {0} gave no readable answer; is it another version?")]
    Unreadable(u32),
    /// The run did not do what was asked.
    #[error("{}", .0.message)]
    Refused(Fault),
}

/// Runs of which one has to be named.
#[derive(Debug)]
pub struct Several {
    runs: Vec<Reply>,
    silent: Vec<Error>,
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for reply in &self.runs {
            let program = reply.program.first().map_or("", String::as_str);
            let program = program.replace(char::is_control, " ");
            write!(f, "\n  {}", reply.pid)?;
            if let Some(name) = &reply.name {
                write!(f, " {name}")?;
            }
            write!(f, " ({program})")?;
        }
        for error in &self.silent {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

impl Client {
    /// All runs, routers and proxies of this user, or everybody's if this user is root. None is
    /// asked.
    #[must_use]
    pub fn runs() -> Vec<Self> {
        runs().into_iter().map(|run| Self { run }).collect()
    }

    /// The only `towpath run` or `router` of this user. Proxies do not count.
    ///
    /// # Errors
    /// There is none, or there are several. A run that does not answer may be the one that is
    /// meant, so that none is the only one beside it.
    pub fn only() -> Result<Self, Error> {
        let (mut runs, silent) = Self::survey();
        match (runs.pop(), runs.is_empty() && silent.is_empty()) {
            (Some(only), true) => Ok(Self::of_reply(&only)),
            (None, true) => Err(Error::NoRun("is there".to_owned())),
            (last, false) => {
                runs.extend(last);
                Err(Error::Several(Several { runs, silent }))
            }
        }
    }

    /// The only one that answers, and those that do not, with the reason: for a look, which is
    /// harmless in the wrong run.
    ///
    /// # Errors
    /// None answers, or several do.
    pub fn only_that_answers() -> Result<(Self, Vec<Error>), Error> {
        let (runs, silent) = Self::survey();
        match &runs[..] {
            [only] => Ok((Self::of_reply(only), silent)),
            [] if silent.is_empty() => Err(Error::NoRun("is there".to_owned())),
            _ => Err(Error::Several(Several { runs, silent })),
        }
    }

    fn of_reply(reply: &Reply) -> Self {
        Self { run: Run { pid: reply.pid, name: reply.name.clone() } }
    }

    /// Runs and routers that answer, and all that do not.
    fn survey() -> (Vec<Reply>, Vec<Error>) {
        let told = ask_those(|_| true, &Call::Info);
        let (mut replies, mut silent) = (Vec::new(), Vec::new());
        for (pid, told) in told {
            match told {
                Ok(bytes) => match read(pid, &bytes) {
                    Ok(reply) => replies.push(reply),
                    Err(_) => silent.push(Error::Unreadable(pid)),
                },
                Err(why) => silent.push(Error::NoAnswer(pid, why)),
            }
        }
        replies.retain(|reply| reply.kind != RunKind::Proxy);
        (replies, silent)
    }

    /// The run with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<Self, Error> {
        let none = || Error::NoRun(format!("has the name {name:?}"));
        if !is_name(name) {
            return Err(none());
        }
        let is_it = |run: &Run| run.name.as_ref().is_some_and(|known| known.as_str() == name);
        Self::found(runs().into_iter().find(is_it).ok_or_else(none)?, none)
    }

    /// The run with this process id.
    ///
    /// # Errors
    /// There is none.
    pub fn of_process(pid: u32) -> Result<Self, Error> {
        let none = || Error::NoRun(format!("has process id {pid}"));
        Self::found(runs().into_iter().find(|run| run.pid == pid).ok_or_else(none)?, none)
    }

    /// A run whose files are there, unless it was killed.
    fn found(run: Run, none: impl Fn() -> Error) -> Result<Self, Error> {
        let client = Self { run };
        match client.ask(&Call::Info) {
            Ok(_) => Ok(client),
            Err(Error::NoRun(_)) => Err(none()),
            Err(error) => Err(error),
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.run.pid
    }

    /// Its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.run.name.as_ref().map(crate::Word::as_str)
    }

    /// Its interfaces, routes and neighbours.
    ///
    /// # Errors
    /// The run does not answer, or has none: a proxy, or a run with its stack in PROGRAM's process.
    pub fn net(&self) -> Result<Net, Error> {
        self.ask(&Call::Net)?.net.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Its sockets, or the flows of a proxy.
    ///
    /// # Errors
    /// The run does not answer.
    pub fn sockets(&self) -> Result<Vec<Socket>, Error> {
        self.ask(&Call::Sockets)?.sockets.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Its counters since it began.
    ///
    /// # Errors
    /// As [`Client::net`].
    pub fn counters(&self) -> Result<Vec<Layer>, Error> {
        self.ask(&Call::Counters)?.counters.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Its ports, each with its device, its interface and its counters.
    ///
    /// # Errors
    /// As [`Client::net`].
    pub fn ports(&self) -> Result<Vec<Port>, Error> {
        self.ask(&Call::Ports)?.ports.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Makes all of several changes, for each packet at one moment, and returns their number.
    ///
    /// # Errors
    /// None was made: [`Fault::at`] says which one cannot be.
    pub fn apply(&self, changes: &[Change]) -> Result<usize, Error> {
        let call = Call::Apply { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Its access list, with what each rule counted.
    ///
    /// # Errors
    /// As [`Client::net`].
    pub fn acl(&self) -> Result<Acl, Error> {
        self.ask(&Call::Acl)?.acl.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Makes all of several changes of the access list, and returns their number. Each packet is
    /// judged by the list before or the one after.
    ///
    /// # Errors
    /// None was made: the fault names the rule, and [`Fault::at`] the change.
    pub fn apply_acl(&self, changes: &[AclChange]) -> Result<usize, Error> {
        let call = Call::ApplyAcl { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or(Error::Unreadable(self.run.pid))
    }

    /// Any request, and its answer.
    ///
    /// # Errors
    /// The run does not answer, or refuses.
    pub fn ask(&self, call: &Call) -> Result<Reply, Error> {
        let pid = self.run.pid;
        let told = ask_those(|run| *run == self.run, call).pop();
        let (_, told) = told.ok_or_else(|| Error::NoRun(format!("has process id {pid}")))?;
        let bytes = told.map_err(|why| Error::NoAnswer(pid, why))?;
        let reply = read(pid, &bytes)?;
        match reply.error {
            Some(mut fault) => {
                // The message goes to a terminal, as one line.
                let plain = fault.message.chars().filter(|c| !c.is_control());
                fault.message = plain.take(MESSAGE_MAX).collect();
                Err(Error::Refused(fault))
            }
            None => Ok(reply),
        }
    }
}

/// Longest message of a run that is shown.
const MESSAGE_MAX: usize = 500;

fn read(pid: u32, bytes: &[u8]) -> Result<Reply, Error> {
    let reply = serde_json::from_slice(bytes).ok().filter(|reply: &Reply| reply.pid == pid);
    reply.ok_or(Error::Unreadable(pid))
}
