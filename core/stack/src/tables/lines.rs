//! Doubly linked lists of sockets, in the order of insertion. A list may be long, so no operation
//! searches it.

use std::collections::BTreeMap;

/// Linked lists of sockets. A socket is in at most one list. The owner of a list stores the index
/// of its newest socket.
#[derive(Debug)]
pub(crate) struct SocketLines<T>(BTreeMap<u32, LinePlace<T>>);

#[derive(Debug)]
struct LinePlace<T> {
    older: Option<u32>,
    newer: Option<u32>,
    item: T,
}

impl<T> Default for SocketLines<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> SocketLines<T> {
    /// Appends a socket to a list, after its newest socket. The socket must not be in any list.
    pub fn push(&mut self, newest: &mut Option<u32>, socket: u32, item: T) {
        let older = newest.replace(socket);
        if let Some(place) = older.and_then(|older| self.0.get_mut(&older)) {
            place.newer = Some(socket);
        }
        let before = self.0.insert(socket, LinePlace { older, newer: None, item });
        debug_assert!(before.is_none(), "a socket is in one line at most");
    }

    /// Removes a socket from its list. `newest` is the newest socket of the list, and is updated.
    pub fn remove(&mut self, newest: &mut Option<u32>, socket: u32) -> Option<T> {
        let LinePlace { older, newer, item } = self.0.remove(&socket)?;
        if let Some(place) = older.and_then(|older| self.0.get_mut(&older)) {
            place.newer = newer;
        }
        match newer.and_then(|newer| self.0.get_mut(&newer)) {
            Some(place) => place.older = older,
            None => *newest = older,
        }
        Some(item)
    }

    pub fn get(&self, socket: u32) -> Option<&T> {
        self.0.get(&socket).map(|place| &place.item)
    }

    pub fn get_mut(&mut self, socket: u32) -> Option<&mut T> {
        self.0.get_mut(&socket).map(|place| &mut place.item)
    }

    /// Iterates over a list of sockets, the newest one first.
    pub fn iter(&self, newest: Option<u32>) -> impl Iterator<Item = (u32, &T)> {
        let place =
            |socket: Option<u32>| socket.and_then(|socket| Some((socket, self.0.get(&socket)?)));
        std::iter::successors(place(newest), move |(_, at)| place(at.older))
            .map(|(socket, at)| (socket, &at.item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_leaves_the_others_stay_in_order() {
        for leaver in 0..3 {
            let mut lines = SocketLines::default();
            let (mut one, mut other) = (None, None);
            lines.push(&mut other, 9, 'x');
            for socket in 0..3 {
                lines.push(&mut one, socket, 'o');
            }
            assert_eq!(lines.remove(&mut one, leaver), Some('o'));
            assert_eq!(lines.remove(&mut one, leaver), None);
            let line = |newest| lines.iter(newest).map(|(socket, _)| socket).collect::<Vec<_>>();
            let expected: Vec<u32> = (0..3).rev().filter(|socket| *socket != leaver).collect();
            assert_eq!(line(one), expected);
            assert_eq!(line(other), [9]);
            lines.push(&mut one, leaver, 'o');
            assert_eq!(lines.iter(one).next(), Some((leaver, &'o')));
        }
    }
}
