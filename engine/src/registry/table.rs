//! Table of the processes of a run, by the ids of their channels.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use towpath_shm::Fd;

use crate::ids::{ChannelId, Family};
use crate::registry::pending::{Pending, WantOutcome};

/// A family may have at most 1/FAMILY_SHARE of all processes, so that its programs cannot use them
/// up and keep unrelated programs from forking.
const FAMILY_SHARE: u32 = 2;

/// A process, with the id of its channel.
#[derive(Debug)]
pub(crate) struct Process {
    /// Our end of the control socket. In the poller until it has hung up.
    pub control: Arc<Fd>,
    /// Family of the process; None for one whose channel was attached and not cloned.
    pub family: Option<Family>,
    /// Account of its descriptors with the [closer](crate::registry::closer):
    /// the family, or one made for this process alone.
    pub closes_as: Family,
    /// A request that is not answered yet.
    pub pending: Option<Pending>,
    /// Answers of the shards to the process's want.
    pub verdict: WantOutcome,
    /// Nothing that it says is heard any more: it is gone, or broke the rules.
    pub has_hung_up: bool,
    /// Shards that know of it, or are about to.
    pub parts: usize,
}

/// The processes, and the ids that are free.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    processes: Vec<Option<Box<Process>>>,
    /// Ids that no process has.
    free: Vec<u32>,
    count: usize,
    max: u32,
    /// Processes of each family that has any.
    families: HashMap<Family, u32>,
    /// Families that there ever were: the next one's number.
    founded: u64,
}

impl ProcessTable {
    /// An empty table for at most `max` processes.
    pub fn new(max: u32) -> Self {
        Self {
            processes: Vec::new(),
            free: Vec::new(),
            count: 0,
            max,
            families: HashMap::new(),
            founded: 0,
        }
    }

    pub fn get(&self, id: ChannelId) -> Option<&Process> {
        self.processes.get(id.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Process> {
        self.processes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Number of processes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The family of those that a member of `family` makes; of one that is of none: a new one.
    pub fn family_of_clones(&mut self, family: Option<Family>) -> Family {
        family.unwrap_or_else(|| {
            self.founded += 1;
            Family(self.founded)
        })
    }

    /// The id of the next process.
    ///
    /// # Errors
    /// If there are as many processes as there may be, of the family or together.
    pub fn next_id(&self, family: Option<Family>) -> io::Result<ChannelId> {
        if self.count >= self.max as usize {
            return Err(io::Error::other("as many processes as there may be"));
        }
        let kin = family.and_then(|family| self.families.get(&family)).copied().unwrap_or(0);
        if kin >= self.max / FAMILY_SHARE {
            return Err(io::Error::other("as many processes of one family as there may be"));
        }
        Ok(ChannelId(self.free.last().copied().unwrap_or(self.processes.len() as u32)))
    }

    /// Adds a process under the [next id](Self::next_id).
    pub fn insert(&mut self, id: ChannelId, process: Process) {
        self.free.pop();
        let index = id.0 as usize;
        if index == self.processes.len() {
            self.processes.push(None);
        }
        if let Some(family) = process.family {
            *self.families.entry(family).or_default() += 1;
        }
        self.processes[index] = Some(Box::new(process));
        self.count += 1;
    }

    /// Removes a process, whose id is free from now on.
    pub fn remove(&mut self, id: ChannelId) -> Option<Box<Process>> {
        let process = self.processes.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        self.count -= 1;
        if let Some(family) = process.family
            && let Some(count) = self.families.get_mut(&family)
        {
            *count -= 1;
            if *count == 0 {
                self.families.remove(&family);
            }
        }
        Some(process)
    }

    /// Removes all processes.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<Process>> {
        self.processes.drain(..).flatten()
    }
}
