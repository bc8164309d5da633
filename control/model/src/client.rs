//! Client for the control socket of a run.

use std::fmt;

use rustix::process::geteuid;

use crate::acl::{Acl, AclChange};
use crate::ask::{NoAnswer, Run, ask_user, connect_to, runs_of};
use crate::flows::{FlowFilter, Nat, NatChange, ShownFlow};
use crate::folder;
use crate::lookup::{FoundRoute, RouteLookup};
use crate::net::{Change, Net};
use crate::ports::Port;
use crate::reports::Reports;
use crate::request::{Call, Layer, Reply, RequestFault, RunKind, RunningConfig};
use crate::settings::{TcpSetting, TcpSettingChange};
use crate::sockets::ShownSocket;
use crate::subscriber::UNSENT_REPORTS_LEN_MAX;
use crate::subscription::Subscription;
use crate::text::printable;
use crate::user::user_name;

/// Client of a run (`towpath run`, `router` or `proxy`). Opens a new connection for each request.
#[derive(Debug, Clone)]
pub struct Client {
    run: Run,
}

/// Reason why a request to a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The user has no run that matches the selection.
    #[error("{0}")]
    NoRun(Missing),
    /// Several runs match the selection, so one must be named.
    #[error("several runs may be meant: name one by --run PID or --name NAME{0}")]
    Several(Several),
    /// Runs of another user were selected, which only root may access.
    #[error("runs of user {} answer that user and root only", user_name(*.0))]
    NotRoot(u32),
    /// The request would change a run of another user, which only that user may do.
    #[error(
        "runs of user {user} can be shown, not changed: make the change as that user, as by \
         `sudo -u {user} towpath ...`",
        user = user_name(*.0)
    )]
    Foreign(u32),
    /// The run did not answer.
    #[error("{0} {1}")]
    NoAnswer(Run, NoAnswer),
    /// The answer is malformed, or the run uses another version of the protocol.
    #[error("{0} gave no readable answer; is it another version?")]
    Unreadable(Run),
    /// The run answered with an error.
    #[error("{}", .0.message)]
    Refused(RequestFault),
    /// The run ended while it sent reports.
    #[error("{0} has ended")]
    Ended(Run),
}

/// Details about a run that was selected but does not exist, for the message.
#[derive(Debug)]
pub struct Missing {
    owner: u32,
    /// Predicate of the error message, such as `has the name "web"`. Its subject is the run.
    what: String,
    /// Other users that have a matching run. Empty unless the caller is root.
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

/// Runs that match the selection, of which the user must select one.
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

/// The runs, routers and proxies of one user, among which methods select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    owner: u32,
}

/// The matching runs that answer, with their answers, and the errors of those that do not answer.
type Survey = (Vec<(Run, Reply)>, Vec<Error>);

/// Maximum number of other users named in the message about a missing run.
const ELSEWHERE_MAX: usize = 4;

impl Runs {
    /// Returns the runs of this process's user.
    #[must_use]
    pub fn own() -> Self {
        Self { owner: geteuid().as_raw() }
    }

    /// Returns the runs of user `owner`. Only root can access those of other users, and cannot
    /// change them.
    #[must_use]
    pub fn of_user(owner: u32) -> Self {
        Self { owner }
    }

    /// Lists all runs of the user whose process is alive, including those that do not answer.
    #[must_use]
    pub fn list(self) -> Vec<Client> {
        let told = ask_user(self.owner, |_| true, &Call::Info);
        told.into_iter().map(|(run, _)| Client { run }).collect()
    }

    /// Returns the only `towpath run` or `router`. Ignores proxies.
    ///
    /// # Errors
    /// There is no run, or there are several. A run that does not answer counts as well, because
    /// the user may mean this one.
    pub fn only(self) -> Result<Client, Error> {
        let (mut runs, silent) = self.survey_of_stacks()?;
        match (runs.len(), silent.len()) {
            (1, 0) => Ok(Client { run: runs.remove(0).0 }),
            (0, 0) => Err(self.missing("is there".to_owned(), |_| true)),
            _ => Err(Error::Several(Several { runs, silent })),
        }
    }

    /// Returns the only `towpath run` or `router` that answers, and the errors of those that do
    /// not. Intended for queries, which are harmless if sent to the wrong run.
    ///
    /// # Errors
    /// No run answers, or several do.
    pub fn only_that_answers(self) -> Result<(Client, Vec<Error>), Error> {
        let (mut runs, silent) = self.survey_of_stacks()?;
        match (runs.len(), silent.len()) {
            (1, _) => Ok((Client { run: runs.remove(0).0 }, silent)),
            (0, 0) => Err(self.missing("is there".to_owned(), |_| true)),
            _ => Err(Error::Several(Several { runs, silent })),
        }
    }

    /// Returns the run with this name.
    ///
    /// # Errors
    /// There is no such run.
    pub fn named(self, name: &str) -> Result<Client, Error> {
        let is_it = |run: &Run| run.name.as_ref().is_some_and(|known| known.as_str() == name);
        self.find(format!("has the name {name:?}"), is_it)
    }

    /// Returns the run with this process id.
    ///
    /// # Errors
    /// There is no such run, or there are several in different PID namespaces.
    pub fn of_process(self, pid: u32) -> Result<Client, Error> {
        self.find(format!("has process id {pid}"), |run| run.pid == pid)
    }

    /// Returns the run for which `is_it` returns true. Ignores runs that were killed.
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

    /// Returns the runs and routers that answer, and the errors of all runs that do not. Ignores
    /// proxies.
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
    /// Returns the only `towpath run` or `router` of this user. Ignores proxies.
    ///
    /// # Errors
    /// See [`Runs::only`].
    pub fn only() -> Result<Self, Error> {
        Runs::own().only()
    }

    /// Returns the run of this user with this name.
    ///
    /// # Errors
    /// See [`Runs::named`].
    pub fn named(name: &str) -> Result<Self, Error> {
        Runs::own().named(name)
    }

    /// Returns the run of this user with this process id.
    ///
    /// # Errors
    /// See [`Runs::of_process`].
    pub fn of_process(pid: u32) -> Result<Self, Error> {
        Runs::own().of_process(pid)
    }

    /// Returns the user who owns the run.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.run.owner
    }

    /// Returns the process id of the run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.run.pid
    }

    /// Returns the name of the run, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.run.name.as_ref().map(crate::Word::as_str)
    }

    /// Queries the interfaces, routes and neighbours of the run.
    ///
    /// # Errors
    /// The run does not answer, or does not support this request. A proxy does not, nor a run whose
    /// stack is in PROGRAM's process.
    pub fn net(&self) -> Result<Net, Error> {
        self.ask(&Call::Net)?.net.ok_or_else(|| self.unreadable())
    }

    /// Looks up the route to a destination.
    ///
    /// # Errors
    /// Fails if the `towpath` process does not answer or does not support this request, or if no
    /// route leads to the destination.
    pub fn route(&self, lookup: RouteLookup) -> Result<FoundRoute, Error> {
        self.ask(&Call::Route { lookup })?.route.ok_or_else(|| self.unreadable())
    }

    /// Queries the sockets of the run, or the flows of a proxy.
    ///
    /// # Errors
    /// The run does not answer.
    pub fn sockets(&self) -> Result<Vec<ShownSocket>, Error> {
        self.ask(&Call::Sockets)?.sockets.ok_or_else(|| self.unreadable())
    }

    /// Queries the run's counters, which count since its start.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn counters(&self) -> Result<Vec<Layer>, Error> {
        self.ask(&Call::Counters)?.counters.ok_or_else(|| self.unreadable())
    }

    /// Queries the ports of the run, each with its device, its interface and its counters.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn ports(&self) -> Result<Vec<Port>, Error> {
        self.ask(&Call::Ports)?.ports.ok_or_else(|| self.unreadable())
    }

    /// Applies several changes of the network configuration atomically: each packet is handled
    /// either before all of them or after. Returns their number.
    ///
    /// # Errors
    /// No change was applied. [`RequestFault::at`] is the index of the invalid change.
    pub fn apply(&self, changes: &[Change]) -> Result<usize, Error> {
        let call = Call::Apply { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Queries the access list, with the counters of each rule.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn acl(&self) -> Result<Acl, Error> {
        self.ask(&Call::Acl)?.acl.ok_or_else(|| self.unreadable())
    }

    /// Applies several changes to the access list atomically, and returns their number. Each packet
    /// is filtered by either the old or the new list.
    ///
    /// # Errors
    /// No change was applied. The error names the rule, and [`RequestFault::at`] is the index of
    /// the invalid change.
    pub fn apply_acl(&self, changes: &[AclChange]) -> Result<usize, Error> {
        let call = Call::ApplyAcl { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Queries the rules of address translation, with the number of flows that each rule has
    /// translated.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn nat(&self) -> Result<Nat, Error> {
        self.ask(&Call::Nat)?.nat.ok_or_else(|| self.unreadable())
    }

    /// Applies several changes to the rules of address translation atomically, and returns their
    /// number. Existing flows keep their translation.
    ///
    /// # Errors
    /// No change was applied. [`RequestFault::at`] is the index of the invalid change.
    pub fn apply_nat(&self, changes: &[NatChange]) -> Result<usize, Error> {
        let call = Call::ApplyNat { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Queries the flows that match a filter. The list is not a consistent snapshot, because flows
    /// change while the list is created.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn flows(&self, filter: &FlowFilter) -> Result<Vec<ShownFlow>, Error> {
        let call = Call::Flows { filter: filter.clone() };
        self.ask(&call)?.flows.ok_or_else(|| self.unreadable())
    }

    /// Queries the events of flows, beginning with number `from`, and the number of the next event.
    /// The run keeps only the latest 1024 events. If `from` is 0, returns no events.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn flow_events(&self, from: u64) -> Result<(Vec<ShownFlow>, u64), Error> {
        let reply = self.ask(&Call::FlowEvents { from })?;
        reply.flows.zip(reply.next_event).ok_or_else(|| self.unreadable())
    }

    /// Deletes the tracked flows that match a filter, and returns their number.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn delete_flows(&self, filter: &FlowFilter) -> Result<usize, Error> {
        let call = Call::DeleteFlows { filter: filter.clone() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Removes all answers from the cache of the DNS forwarder, and returns their number.
    ///
    /// # Errors
    /// See [`Client::net`]; also if the run forwards no DNS.
    pub fn flush_dns(&self) -> Result<usize, Error> {
        self.ask(&Call::FlushDns)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Queries the TCP settings, which new connections use.
    ///
    /// # Errors
    /// See [`Client::net`].
    pub fn settings(&self) -> Result<Vec<TcpSetting>, Error> {
        self.ask(&Call::Settings)?.settings.ok_or_else(|| self.unreadable())
    }

    /// Changes TCP settings for new connections, also for those that existing listeners accept.
    /// Returns the number of changes.
    ///
    /// # Errors
    /// No change was applied. [`RequestFault::at`] is the index of the invalid change.
    pub fn apply_settings(&self, changes: &[TcpSettingChange]) -> Result<usize, Error> {
        let call = Call::ApplySettings { changes: changes.to_vec() };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Queries the configuration of a router.
    ///
    /// # Errors
    /// The run does not answer, or is no router.
    pub fn config(&self) -> Result<RunningConfig, Error> {
        self.ask(&Call::Config)?.config.ok_or_else(|| self.unreadable())
    }

    /// Changes a router to a configuration in TOML, and returns the number of changed settings.
    /// With `confirm_s`, the change is undone after this time unless it is confirmed.
    ///
    /// # Errors
    /// If an error is returned, nothing was changed. The error names the key that caused it.
    pub fn apply_config(&self, text: &str, confirm_s: Option<u32>) -> Result<usize, Error> {
        let call = Call::ApplyConfig { text: text.to_owned(), confirm_s };
        self.ask(&call)?.applied.ok_or_else(|| self.unreadable())
    }

    /// Confirms the latest change of the configuration, so that it is not undone.
    ///
    /// # Errors
    /// Fails if no change waits for confirmation.
    pub fn confirm_config(&self) -> Result<(), Error> {
        self.ask(&Call::ConfirmConfig).map(drop)
    }

    /// Undoes the latest change of the configuration, and returns the number of changed settings.
    ///
    /// # Errors
    /// There is no earlier configuration, or it cannot be restored.
    pub fn rollback_config(&self) -> Result<usize, Error> {
        self.ask(&Call::RollbackConfig)?.applied.ok_or_else(|| self.unreadable())
    }

    fn unreadable(&self) -> Error {
        Error::Unreadable(self.run.clone())
    }

    /// Sends a request, and returns its answer.
    ///
    /// # Errors
    /// Fails if the run does not answer or reports an error. Also fails if the request would change
    /// a run of another user.
    pub fn ask(&self, call: &Call) -> Result<Reply, Error> {
        if call.is_change() && self.run.is_foreign() {
            return Err(Error::Foreign(self.run.owner));
        }
        let told = ask_user(self.run.owner, |run| *run == self.run, call).pop();
        let (run, told) = told.ok_or_else(|| self.missing())?;
        let bytes = told.map_err(|why| Error::NoAnswer(run.clone(), why))?;
        reply_of(&run, &bytes)
    }

    /// Subscribes to reports of the run.
    ///
    /// # Errors
    /// The run does not answer, has too many subscribers, or does not send reports. A proxy does
    /// not, nor a run whose stack is in PROGRAM's process.
    pub fn subscribe(&self, subscription: &Subscription) -> Result<Reports, Error> {
        let call = Call::Subscribe { subscription: subscription.clone() };
        let socket = connect_to(&self.run, &call);
        let socket = socket.map_err(|why| Error::NoAnswer(self.run.clone(), why))?;
        Reports::new(self.run.clone(), socket.ok_or_else(|| self.missing())?)
    }

    /// Returns the error for a run that has not answered in time.
    #[must_use]
    pub fn silent(&self) -> Error {
        Error::NoAnswer(self.run.clone(), NoAnswer::Silent)
    }

    /// Returns the error for a run that dropped a part of a sample, because the part exceeds the
    /// memory for unsent reports.
    #[must_use]
    pub fn incomplete(&self) -> Error {
        Error::NoAnswer(self.run.clone(), NoAnswer::TooLong(UNSENT_REPORTS_LEN_MAX))
    }

    fn missing(&self) -> Error {
        let (owner, what) = (self.run.owner, format!("has process id {}", self.run.pid));
        Error::NoRun(Missing { owner, what, elsewhere: Vec::new() })
    }
}

/// Maximum length in characters of a run's message that is shown to the user.
const MESSAGE_MAX: usize = 500;

/// Parses the answer of a run. Returns an error if the run has answered with one.
pub(crate) fn reply_of(run: &Run, bytes: &[u8]) -> Result<Reply, Error> {
    let reply = read(run, bytes)?;
    match reply.error {
        Some(mut fault) => {
            fault.message = printable(&fault.message).chars().take(MESSAGE_MAX).collect();
            Err(Error::Refused(fault))
        }
        None => Ok(reply),
    }
}

fn read(run: &Run, bytes: &[u8]) -> Result<Reply, Error> {
    let reply = serde_json::from_slice(bytes).ok().filter(|reply: &Reply| reply.pid == run.pid);
    reply.ok_or_else(|| Error::Unreadable(run.clone()))
}
