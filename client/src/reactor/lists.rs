//! Wake-ups of threads that wait for lists of descriptors: poll(2) and select(2).

use super::locked::{Locked, Result};
use super::sleep::{clear, new_wakeup};
use crate::hub::ListWakeup;
use crate::watches::{LIST_WATCHES_MAX, Target, Watch};
use crate::{Client, Socket};

impl Locked<'_> {
    /// Returns the number of a wake-up for a thread that waits for a list of descriptors, until
    /// [`Self::leave_list`]. With `is_willing` the thread takes the driver lock when it is woken.
    ///
    /// # Errors
    /// `Refused` when the kernel has no eventfd to give.
    pub fn join_list(&mut self, client: &Client, is_willing: bool) -> Result<usize> {
        let at = match self.lists.iter().position(|list| !list.is_taken) {
            Some(at) => at,
            None => {
                self.lists.push(ListWakeup::new(new_wakeup(client)?));
                self.lists.len() - 1
            }
        };
        let list = &mut self.lists[at];
        (list.is_taken, list.is_willing) = (true, is_willing);
        (list.is_due, list.is_for_all) = (false, false);
        Ok(at)
    }

    /// Wakes the thread of a list at events of `socket`. Look at the socket afterwards, because
    /// earlier events do not.
    pub fn watch_in_list(&mut self, at: usize, socket: Socket, events: u32) {
        if self.lists[at].watches.len() == LIST_WATCHES_MAX || !self.watches.has_room() {
            return self.watch_all_in_list(at);
        }
        let index = self.watch(Watch::new(socket, events, Target::List(at), 0));
        self.lists[at].watches.push(index);
    }

    /// Wakes the thread of a list at each event of the process.
    pub fn watch_all_in_list(&mut self, at: usize) {
        self.lists[at].is_for_all = true;
    }

    /// Returns the descriptor to sleep on, which becomes readable at a wake-up.
    pub fn wakeup_of(&self, at: usize) -> i32 {
        self.lists.get(at).map_or(-1, |list| list.fd.get())
    }

    /// Gives the wake-up back.
    pub fn leave_list(&mut self, at: usize) {
        let Some(list) = self.lists.get_mut(at) else { return };
        if std::mem::take(&mut list.is_rung) {
            clear(list.fd.get());
        }
        list.is_taken = false;
        while let Some(index) = self.lists[at].watches.pop() {
            self.release(index);
        }
    }
}
