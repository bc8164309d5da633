//! Handles requests about the configuration of a router: show, change, confirm and undo.
//!
//! A thread of the router undoes a change that is not confirmed in time. If a change interrupts the
//! client's own connection to the router, the client can connect again afterwards.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use towpath_config::{ConfigDelta, RouterConfig};
use towpath_model::{Call, Reply, RequestFault, RunningConfig};

use super::config_changer::{ConfigChanger, restorable};
use super::file_options::is_list;
use crate::messages::Messages;
use crate::served::{self, ServedStack};

/// Maximum time in seconds that a change waits for its confirmation: a day.
const CONFIRM_S_MAX: u32 = 86_400;

/// Stores the previous configuration of a router, to undo a change. Clones refer to the same
/// router.
#[derive(Clone)]
pub struct ConfigKeeper(Arc<KeeperState>);

struct KeeperState {
    changer: ConfigChanger,
    messages: Messages,
    /// Locked during each change, so that changes are made one after another.
    history: Mutex<ConfigHistory>,
    /// Notified when a change was confirmed or undone.
    decided: Condvar,
}

/// Configurations that can be restored.
#[derive(Default)]
struct ConfigHistory {
    /// Configuration before the latest change.
    previous: Option<RouterConfig>,
    /// Time at which the latest change is undone.
    undo_at: Option<Instant>,
}

impl ConfigKeeper {
    /// Creates the keeper of a router's configuration.
    pub fn new(changer: ConfigChanger, messages: &Messages) -> Self {
        let (messages, history) = (messages.clone(), Mutex::default());
        Self(Arc::new(KeeperState { changer, messages, history, decided: Condvar::new() }))
    }

    /// Returns the running stack.
    pub fn stack(&self) -> Arc<ServedStack> {
        Arc::clone(&self.0.changer.stack)
    }

    /// Answers a request.
    pub fn answer(&self, call: Call, reply: &mut Reply) {
        let state = &*self.0;
        let done = match call {
            Call::Config => state.shown().map(|config| reply.config = Some(config)),
            Call::ApplyConfig { text, confirm_s } => {
                self.apply(&text, confirm_s).map(|count| reply.applied = Some(count))
            }
            Call::ConfirmConfig => state.confirm().map(|()| reply.applied = Some(1)),
            Call::RollbackConfig => state.rollback().map(|count| reply.applied = Some(count)),
            call if call.is_change() => {
                let _alone = state.lock();
                return served::answer(&state.changer.stack, call, reply);
            }
            call => return served::answer(&state.changer.stack, call, reply),
        };
        reply.error = done.err();
    }

    /// Changes the router to a configuration, which is undone after `confirm_s` seconds unless it
    /// is confirmed. Returns the number of changed settings.
    fn apply(&self, text: &str, confirm_s: Option<u32>) -> Result<usize, RequestFault> {
        if let Some(seconds) = confirm_s.filter(|it| !(1..=CONFIRM_S_MAX).contains(it)) {
            let why = format!("confirm: {seconds} s; expected 1 to {CONFIRM_S_MAX} seconds");
            return Err(refused(why));
        }
        let state = &*self.0;
        let mut history = state.lock();
        if history.undo_at.is_some() {
            let why = "a change waits for its confirmation: confirm it, or roll it back, first";
            return Err(refused(why.to_owned()));
        }
        let target = state.changer.parse(text)?;
        let before = state.changer.running()?;
        if ConfigDelta::between(&before, &target).is_empty() {
            return Ok(0);
        }
        let count = state.changer.change_to(&target)?;
        history.previous = Some(restorable(before));
        if let Some(seconds) = confirm_s {
            let after = Duration::from_secs(seconds.into());
            let undo_at = Instant::now() + after;
            history.undo_at = Some(undo_at);
            let keeper = self.clone();
            let thread = Builder::new().name("towpath-confirm".into());
            let spawned = thread.spawn(move || keeper.0.undo_unless_confirmed(undo_at, after));
            if let Err(error) = spawned {
                history.undo_at = None;
                state.restore(&mut history)?;
                return Err(refused(format!("a thread for the confirmation: {error}")));
            }
        }
        Ok(count)
    }
}

impl KeeperState {
    fn lock(&self) -> MutexGuard<'_, ConfigHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current configuration as TOML.
    fn shown(&self) -> Result<RunningConfig, RequestFault> {
        let history = self.lock();
        let text = self.changer.running()?.to_toml(is_list);
        let left = history.undo_at.map(|at| at.saturating_duration_since(Instant::now()));
        Ok(RunningConfig {
            text,
            file: self.changer.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
            undone_in_s: left.map(|left| left.as_secs()),
        })
    }

    /// Keeps the latest change.
    fn confirm(&self) -> Result<(), RequestFault> {
        let mut history = self.lock();
        if history.undo_at.take().is_none() {
            return Err(refused("no change waits for a confirmation".to_owned()));
        }
        self.decided.notify_all();
        Ok(())
    }

    /// Undoes the latest change. Returns the number of changed settings.
    fn rollback(&self) -> Result<usize, RequestFault> {
        let mut history = self.lock();
        let count = self.restore(&mut history)?;
        history.undo_at = None;
        self.decided.notify_all();
        Ok(count)
    }

    fn restore(&self, history: &mut ConfigHistory) -> Result<usize, RequestFault> {
        let Some(previous) = &history.previous else {
            return Err(refused("there is no earlier configuration to roll back to".to_owned()));
        };
        let count = self.changer.change_to(previous)?;
        history.previous = None;
        Ok(count)
    }

    /// Waits at most `after` for the confirmation of a change. Undoes the change if it is not
    /// confirmed. `undo_at` identifies the change by the time at which it is undone.
    fn undo_unless_confirmed(&self, undo_at: Instant, after: Duration) {
        // Check which change is pending: a later one may have replaced it before this thread wakes
        // up.
        let is_undecided = |history: &mut ConfigHistory| history.undo_at == Some(undo_at);
        let waited = self.decided.wait_timeout_while(self.lock(), after, is_undecided);
        let (mut history, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !is_undecided(&mut history) {
            return;
        }
        history.undo_at = None;
        let told = match self.restore(&mut history) {
            Ok(count) => format!("{count} settings were not confirmed in time, and are undone"),
            Err(fault) => format!(
                "the configuration was not confirmed in time, and cannot be undone: {}",
                fault.message
            ),
        };
        self.messages.put_error(&told);
    }
}

fn refused(why: String) -> RequestFault {
    RequestFault::new("refused", why)
}
