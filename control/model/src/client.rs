//! A client of one run.

use std::fmt;

use rustix::process::geteuid;

use crate::acl::{Acl, AclChange};
use crate::ask::{NoAnswer, Run, ask_user, runs_of};
use crate::folder;
use crate::net::{Change, Net};
use crate::ports::Port;
use crate::request::{Call, Layer, Reply, RequestFault, RunKind};
use crate::sockets::ShownSocket;
use crate::text::printable;
use crate::user::user_name;

/// A run that answers requests. Each request is a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    run: Run,
}

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No run of the user is the one that was named.
    #[error("{0}")]
    NoRun(Missing),
    /// There are several runs, and none was named.
    #[error("several runs may be meant: name one by --run PID or --name NAME{0}")]
    Several(Several),
    /// Runs of another user are meant, and this user is not root.
    #[error("runs of user {} answer that user and root only", user_name(*.0))]
    NotRoot(u32),
    /// The run is another user's, and requests of this kind change it.
    #[error(
        "runs of user {user} can be shown, not changed: make the change as that user, as by \
         `sudo -u {user} towpath ...`",
        user = user_name(*.0)
    )]
    Foreign(u32),
    /// The run did not answer.
    #[error("{0} {1}")]
    NoAnswer(Run, NoAnswer),
    /// The answer is not one of this version of the protocol.
    #[error("{0} gave no readable answer; is it another version?")]
    Unreadable(Run),
    /// The run did not do what was asked.
    #[error("{}", .0.message)]
    Refused(RequestFault),
}

/// A run that a user does not have.
#[derive(Debug)]
pub struct Missing {
    owner: u32,
    /// Rest of a sentence that begins with the run.
    what: String,
    /// Other users with such a run, if root asks.
    elsewhere: Vec<u32>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = match self.owner == geteuid().as_raw() {
            true => "this user".to_owned(),
            false => format!("user {}", user_name(self.owner)),
        };
        write!(f, "no `towpath run` or `router` of {user} {}", self.what)?;
        for (at, owner) in self.elsewhere.iter().enumerate() {
            let before = if at == 0 { "; with --user: " } else { ", " };
            write!(f, "{before}{}", user_name(*owner))?;
        }
        Ok(())
    }
}

/// Runs of which one has to be named.
#[derive(Debug)]
pub struct Several {
    runs: Vec<(Run, Reply)>,
    silent: Vec<Error>,
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (run, reply) in &self.runs {
            let program = reply.program.first().map_or("", String::as_str);
            write!(f, "\n  {}", run.pid)?;
            if let Some(name) = &run.name {
                write!(f, " {name}")?;
            }
            write!(f, " ({}), user {}", printable(program), user_name(run.owner))?;
        }
        for error in &self.silent {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

/// The runs, routers and proxies of one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    owner: u32,
}

/// Wanted runs that answer, and those that do not.
type Survey = (Vec<(Run, Reply)>, Vec<Error>);

/// Users that are named where a run is missing.
const ELSEWHERE_MAX: usize = 4;

impl Runs {
    /// Runs of this user.
    #[must_use]
    pub fn own() -> Self {
        Self { owner: geteuid().as_raw() }
    }

    /// Runs of a user, which only root can find and only that user can change.
    #[must_use]
    pub fn of_user(owner: u32) -> Self {
        Self { owner }
    }

    /// All of them that are alive, whether they answer or not.
    #[must_use]
    pub fn list(self) -> Vec<Client> {
        let told = ask_user(self.owner, |_| true, &Call::Info);
        told.into_iter().map(|(run, _)| Client { run }).collect()
    }

    /// The only `towpath run` or `router`. Proxies do not count.
    ///
    /// # Errors
    /// There is none, or there are several. A run that does not answer may be the one that is
    /// meant, so that none is the only one beside it.
    pub fn only(self) -> Result<Client, Error> {
        let (mut runs, silent) = self.survey_of_stacks()?;
        match (runs.len(), silent.len()) {
            (1, 0) => Ok(Client { run: runs.remove(0).0 }),
            (0, 0) => Err(self.missing("is there".to_owned(), |_| true)),
            _ => Err(Error::Several(Several { runs, silent })),
        }
    }

    /// The only one that answers, and those that do not, with the reason: for a look, which is
    /// harmless in the wrong run.
    ///
    /// # Errors
    /// None answers, or several do.
    pub fn only_that_answers(self) -> Result<(Client, Vec<Error>), Error> {
        let (mut runs, silent) = self.survey_of_stacks()?;
        match (runs.len(), silent.len()) {
            (1, _) => Ok((Client { run: runs.remove(0).0 }, silent)),
            (0, 0) => Err(self.missing("is there".to_owned(), |_| true)),
            _ => Err(Error::Several(Several { runs, silent })),
        }
    }

    /// The run with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(self, name: &str) -> Result<Client, Error> {
        let is_it = |run: &Run| run.name.as_ref().is_some_and(|known| known.as_str() == name);
        self.find(format!("has the name {name:?}"), is_it)
    }

    /// The run with this process id.
    ///
    /// # Errors
    /// There is none, or there are several, in PID namespaces of their own.
    pub fn of_process(self, pid: u32) -> Result<Client, Error> {
        self.find(format!("has process id {pid}"), |run| run.pid == pid)
    }

    /// The run of which `is_it` is true, if it was not killed.
    fn find(self, what: String, is_it: impl Fn(&Run) -> bool) -> Result<Client, Error> {
        let (mut runs, mut silent) = self.survey(&is_it)?;
        match (runs.len(), silent.len()) {
            (1, 0) => Ok(Client { run: runs.remove(0).0 }),
            (0, 1) => Err(silent.remove(0)),
            (0, 0) => Err(self.missing(what, is_it)),
            _ => Err(Error::Several(Several { runs, silent })),
        }
    }

    fn missing(self, what: String, is_it: impl Fn(&Run) -> bool) -> Error {
        let others = folder::other_users().into_iter().filter(|owner| *owner != self.owner);
        let elsewhere = others.filter(|owner| runs_of(*owner).iter().any(&is_it));
        let elsewhere = elsewhere.take(ELSEWHERE_MAX).collect();
        Error::NoRun(Missing { owner: self.owner, what, elsewhere })
    }

    /// Runs and routers that answer, and all runs that do not.
    fn survey_of_stacks(self) -> Result<Survey, Error> {
        let (mut runs, silent) = self.survey(|_| true)?;
        runs.retain(|(_, reply)| reply.kind != RunKind::Proxy);
        Ok((runs, silent))
    }

    fn survey(self, wanted: impl Fn(&Run) -> bool) -> Result<Survey, Error> {
        let user = geteuid();
        if self.owner != user.as_raw() && !user.is_root() {
            return Err(Error::NotRoot(self.owner));
        }
        let (mut replies, mut silent) = (Vec::new(), Vec::new());
        for (run, told) in ask_user(self.owner, wanted, &Call::Info) {
            match told {
                Ok(bytes) => match read(&run, &bytes) {
                    Ok(reply) => replies.push((run, reply)),
                    Err(error) => silent.push(error),
                },
                Err(why) => silent.push(Error::NoAnswer(run, why)),
            }
        }
        Ok((replies, silent))
    }
}

impl Client {
    /// The only `towpath run` or `router` of this user. Proxies do not count.
    ///
    /// # Errors
    /// As [`Runs::only`].
    pub fn only() -> Result<Self, Error> {
        Runs::own().only()
    }

    /// The run of this user with this name.
    ///
    /// # Errors
    /// As [`Runs::named`].
    pub fn named(name: &str) -> Result<Self, Error> {
        Runs::own().named(name)
    }

    /// The run of this user with this process id.
    ///
    /// # Errors
    /// As [`Runs::of_process`].
    pub fn of_process(pid: u32) -> Result<Self, Error> {
        Runs::own().of_process(pid)
    }

    /// User whose run it is.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.run.owner
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
        self.ask(&Call::Net)?.net.ok_or_else(|| self.unreadable())
    }

    /// Its sockets, or the flows of a proxy.
    ///
    /// # Errors
    /// The run does not answer.
    pub fn sockets(&self) -> Result<Vec<ShownSocket>, Error> {
        self.ask(&Call::Sockets)?.sockets.ok_or_else(|| self.unreadable())
    }

    /// Its counters since it began.
    ///
    /// # Errors
    /// As [`Client::net`].
    pub fn counters(&self) -> Result<Vec<Layer>, Error> {
        self.ask(&Call::Counters)?.counters.ok_or_else(|| self.unreadable())
    }

    /// Its ports, each with its device, its interface and its counters.
    ///
    /// # Errors
    /// As [`Client::net`].
    pub fn ports(&self) -> Result<Vec<Port>, Error> {
        self.ask(&Call::Ports)?.ports.ok_or_else(|| self.unreadable())
    }

    /// Makes all of several changes, for each packet at one moment, and returns their number.
    ///
    /// # Errors
    /// None was made: [`RequestFault::at`] says which one cannot be.
    pub fn apply(&self, changes: &[Change]) -> Result<usize, Error> {
        let call = Call::Apply { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Its access list, with what each rule counted.
    ///
    /// # Errors
    /// As [`Client::net`].
    pub fn acl(&self) -> Result<Acl, Error> {
        self.ask(&Call::Acl)?.acl.ok_or_else(|| self.unreadable())
    }

    /// Makes all of several changes of the access list, and returns their number. Each packet is
    /// judged by the list before or the one after.
    ///
    /// # Errors
    /// None was made: the fault names the rule, and [`RequestFault::at`] the change.
    pub fn apply_acl(&self, changes: &[AclChange]) -> Result<usize, Error> {
        let call = Call::ApplyAcl { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    fn unreadable(&self) -> Error {
        Error::Unreadable(self.run.clone())
    }

    /// Any request, and its answer.
    ///
    /// # Errors
    /// The run does not answer, or refuses; or the request changes a run of another user.
    pub fn ask(&self, call: &Call) -> Result<Reply, Error> {
        if call.is_change() && self.run.is_foreign() {
            return Err(Error::Foreign(self.run.owner));
        }
        let told = ask_user(self.run.owner, |run| *run == self.run, call).pop();
        let (run, told) = told.ok_or_else(|| {
            let (owner, pid) = (self.run.owner, self.run.pid);
            let what = format!("has process id {pid}");
            Error::NoRun(Missing { owner, what, elsewhere: Vec::new() })
        })?;
        let bytes = told.map_err(|why| Error::NoAnswer(run.clone(), why))?;
        let reply = read(&run, &bytes)?;
        match reply.error {
            Some(mut fault) => {
                fault.message = printable(&fault.message).chars().take(MESSAGE_MAX).collect();
                Err(Error::Refused(fault))
            }
            None => Ok(reply),
        }
    }
}

/// Longest message of a run that is shown.
const MESSAGE_MAX: usize = 500;

fn read(run: &Run, bytes: &[u8]) -> Result<Reply, Error> {
    let reply = serde_json::from_slice(bytes).ok().filter(|reply: &Reply| reply.pid == run.pid);
    reply.ok_or_else(|| Error::Unreadable(run.clone()))
}
