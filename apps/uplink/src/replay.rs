//! Uplinks by a replay: the packets of a capture, and when they begin to come.

use std::path::Path;
use std::sync::Arc;

use towpath_pool::LinkType;
use towpath_replay::{Replay, ReplayError, Start};
use towpath_stack::{ReceiverChange, ReceiverWatch};
use towpath_wire::Prefix;

use crate::plan::{Connected, Parted, Plan, Remark, Result, list};
use crate::plan_error::PlanError;
use crate::shape::{Link, Shape};

/// Starts a replay with the first socket that its packets can reach. A program takes a moment to
/// start, and packets that come before are lost on it.
#[derive(Debug)]
pub(crate) struct StartWatch(pub Start);

impl ReceiverWatch for StartWatch {
    fn on_change(&self, change: &ReceiverChange) {
        if change.takes.is_some_and(|at| !at.is_loopback()) {
            self.0.start();
        }
    }
}

impl Plan {
    pub(crate) fn over_replay(&self, path: &Path) -> Result<Connected> {
        let (mut replay, (shape, facts)) = (self.open_replay(path)?, self.on_replay(path));
        let (tell, file) = (self.tell.clone(), path.to_owned());
        replay.on_end(move || tell.remark(Remark::ReplayEnded(file)));
        let watch = Arc::new(StartWatch(replay.wait_for_start()));
        let mut connected = self.finish(vec![replay], &shape, facts)?;
        connected.config.stack.receivers = Some(watch);
        Ok(connected)
    }

    pub(crate) fn parted_replay(&self, path: &Path) -> Result<Parted> {
        self.open_replay(path)?;
        let file = std::fs::File::open(path).map_err(|error| in_capture(path, error.into()))?;
        let (shape, facts) = self.on_replay(path);
        let link = Link::Replay(path.to_owned());
        Ok(Parted { link, shape, descriptors: vec![file.into()], facts })
    }

    fn open_replay(&self, path: &Path) -> Result<Replay> {
        Replay::open(path).map_err(|error| in_capture(path, error))
    }

    /// The stack on which a replay's packets come, and a line for the user.
    fn on_replay(&self, path: &Path) -> (Shape, String) {
        let routes = Shape::default_routes(&self.addresses, LinkType::Ip, |_| None);
        let mut shape = self.shape([0; 6], self.addresses.clone(), self.mtu(), routes, None);
        shape.in_process = false;
        let own = list(self.addresses.iter().map(Prefix::addr));
        (shape, format!("{own} in the packets of {}", path.display()))
    }
}

/// An error of the capture that is to be replayed.
fn in_capture(path: &Path, source: ReplayError) -> PlanError {
    PlanError::Replay { file: path.to_owned(), source }
}
