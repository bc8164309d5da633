//! Table of the processes of a run, by the IDs of their channels.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use towpath_shm::Fd;

use crate::ids::{ChannelId, Family};
use crate::registry::pending::{Pending, WantOutcome};

/// Divisor that limits a family of processes (a process with its descendants) to a part of all
/// processes. The limit prevents one program from using up all processes, so that unrelated
/// programs could not fork.
const FAMILY_SHARE: u32 = 2;

/// A process that uses the engine, as recorded in the registry (process manager).
#[derive(Debug)]
pub(crate) struct RegisteredProcess {
    /// The engine's end of the process's control socket, polled until it hangs up.
    pub control: Arc<Fd>,
    /// Family of the process (a process with its descendants). `None` if the process was attached,
    /// and not created by another attached process.
    pub family: Option<Family>,
    /// Family that the [closer](crate::registry::closer) assigns the descriptors of this process
    /// to: its own family, or one created for this process alone.
    pub closes_as: Family,
    /// Request of the process that has not been answered yet.
    pub pending: Option<Pending>,
    /// Results of the shards for the request in `pending`.
    pub verdict: WantOutcome,
    /// Whether the control socket is not read any more, because the process has ended or violated
    /// the protocol.
    pub has_hung_up: bool,
    /// Number of shards that know the process, or will know it after a command that was already
    /// sent.
    pub parts: usize,
}

/// The processes of a run, and the channel IDs that are free.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    processes: Vec<Option<Box<RegisteredProcess>>>,
    /// Channel IDs that were used and are free again.
    free: Vec<u32>,
    count: usize,
    max: u32,
    /// Number of processes in each family.
    families: HashMap<Family, u32>,
    /// Number of families created so far.
    founded: u64,
}

impl ProcessTable {
    /// Creates an empty table for at most `max` processes.
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

    pub fn get(&self, id: ChannelId) -> Option<&RegisteredProcess> {
        self.processes.get(id.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut RegisteredProcess> {
        self.processes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Returns the number of processes in the table.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the family (a process and all processes forked from it) for a process that a process
    /// of `family` creates. If that is `None`, starts a new family.
    pub fn family_of_clones(&mut self, family: Option<Family>) -> Family {
        family.unwrap_or_else(|| {
            self.founded += 1;
            Family(self.founded)
        })
    }

    /// Returns the ID that the next process will get.
    ///
    /// # Errors
    /// Fails if the engine or the family already has the maximum number of processes.
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

    /// Adds a process with the channel ID that [`Self::next_id`] has returned.
    pub fn insert(&mut self, id: ChannelId, process: RegisteredProcess) {
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

    /// Removes a process and frees its channel ID.
    pub fn remove(&mut self, id: ChannelId) -> Option<Box<RegisteredProcess>> {
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

    /// Removes and returns all processes.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<RegisteredProcess>> {
        self.processes.drain(..).flatten()
    }
}
