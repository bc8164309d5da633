//! Limits the memory of socket filters (BPF) in a shard.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use towpath_cbpf::{INSTRUCTIONS_MAX, Instruction, Program};

use crate::errno::{EINVAL, Errno};

/// Maximum total number of instructions in the socket filters of a shard (event loop): 256 filters
/// of maximum length, about 20 MB.
const ROOM: usize = 1 << 20;
/// Minimum number of instructions that a filter counts as. The minimum limits the number of
/// filters, which are all visited when the limit is reached.
const LEAST: usize = 64;
/// Maximum number of incomplete filters, of which only some parts were received. A thread usually
/// sends all parts without a pause.
const DRAFTS_MAX: usize = 64;

/// Counts the instructions of all socket filters (BPF) of a shard (event loop).
#[derive(Debug)]
pub(crate) struct Filters {
    /// Number of instructions that further filters may have. When it is too low, the instructions
    /// of dropped filters are added again.
    room: usize,
    attached: Vec<Weak<Program>>,
    /// For each socket slot, the instructions received so far of a filter that is sent in several
    /// parts.
    drafts: BTreeMap<u32, Vec<Instruction>>,
}

impl Default for Filters {
    fn default() -> Self {
        Self { room: ROOM, attached: Vec::new(), drafts: BTreeMap::new() }
    }
}

impl Filters {
    /// Adds a part to a socket's filter. Returns the program if the filter is complete, and
    /// otherwise `None`.
    pub fn complete(
        &mut self,
        slot: u32,
        all: usize,
        first: usize,
        part: &[[u8; Instruction::LEN]],
    ) -> Result<Option<Vec<Instruction>>, Errno> {
        let mut draft = self.drafts.remove(&slot).unwrap_or_default();
        draft.truncate(if first == 0 { 0 } else { draft.len() });
        // Reject a part that does not directly follow the previous one. The parts are mixed up if
        // two threads set a filter of the same socket at the same time.
        let fits = draft.len() == first && first + part.len() <= all && all <= INSTRUCTIONS_MAX;
        if !fits || part.is_empty() {
            return Err(Errno(EINVAL));
        }
        draft.extend(part.iter().map(|bytes| Instruction::from_bytes(*bytes)));
        if draft.len() == all {
            return Ok(Some(draft));
        }
        if self.drafts.len() >= DRAFTS_MAX {
            self.drafts.pop_first();
        }
        self.drafts.insert(slot, draft);
        Ok(None)
    }

    /// Reserves space for the instructions of a new filter. Returns false if all filters of the
    /// shard together would exceed the maximum [`ROOM`].
    pub fn take_room(&mut self, filter: &Arc<Program>) -> bool {
        if cost(filter) > self.room {
            self.attached.retain(|filter| filter.strong_count() > 0);
            let used = self.attached.iter().filter_map(Weak::upgrade).map(|filter| cost(&filter));
            self.room = ROOM.saturating_sub(used.sum());
        }
        let Some(left) = self.room.checked_sub(cost(filter)) else { return false };
        self.room = left;
        self.attached.push(Arc::downgrade(filter));
        true
    }
}

fn cost(filter: &Program) -> usize {
    filter.instructions().len().max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(len: usize) -> Arc<Program> {
        let last = Instruction { code: 0x06, jt: 0, jf: 0, k: 1 };
        Arc::new(Program::check(&vec![last; len]).expect("it returns"))
    }

    #[test]
    fn filters_have_room_until_there_is_none() {
        let mut filters = Filters::default();
        let mut held = Vec::new();
        for _ in 0..ROOM / INSTRUCTIONS_MAX {
            held.push(program(INSTRUCTIONS_MAX));
            assert!(filters.take_room(&held[held.len() - 1]));
        }
        assert!(!filters.take_room(&program(1)), "none of them is gone");
        held.pop();
        let small: Vec<_> = (0..INSTRUCTIONS_MAX / LEAST).map(|_| program(1)).collect();
        assert!(small.iter().all(|filter| filters.take_room(filter)));
        assert!(!filters.take_room(&program(1)));
        drop(held);
        assert!(filters.take_room(&program(INSTRUCTIONS_MAX)));
        assert!(filters.attached.len() <= small.len() + 1);
    }

    #[test]
    fn parts_come_in_order() {
        let mut filters = Filters::default();
        let (two, one) = ([[1; 8]; 2], [[2; 8]; 1]);
        assert_eq!(filters.complete(7, 3, 1, &one), Err(Errno(EINVAL)), "the first is missing");
        assert_eq!(filters.complete(7, 3, 0, &two), Ok(None));
        assert_eq!(
            filters.complete(8, 2, 0, &two).map(|whole| whole.map_or(0, |w| w.len())),
            Ok(2)
        );
        assert_eq!(
            filters.complete(7, 3, 2, &one).map(|whole| whole.map_or(0, |w| w.len())),
            Ok(3)
        );
        assert_eq!(filters.complete(7, 3, 2, &one), Err(Errno(EINVAL)));
        assert_eq!(filters.complete(7, 1, 0, &two), Err(Errno(EINVAL)), "more than there are");
        assert_eq!(filters.complete(7, 4097, 0, &two), Err(Errno(EINVAL)));
        assert_eq!(filters.complete(7, 1, 0, &[]), Err(Errno(EINVAL)));
        for slot in 0..1000 {
            assert_eq!(filters.complete(slot, 3, 0, &two), Ok(None));
        }
        assert_eq!(filters.drafts.len(), DRAFTS_MAX);
    }
}
