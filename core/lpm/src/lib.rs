//! Maps prefixes to values, with longest-prefix matching.
//!
//! [`Trie`] is a tree bitmap (Eatherton, Varghese and Dittia, "Tree bitmap: hardware/software IP
//! lookups with incremental updates", 2004). A clone is a cheap snapshot: nodes are reference
//! counted and shared, and a change copies only the nodes on its path. [`Flat`] is a copy of the
//! IPv4 prefixes of a trie, in which routers look up several addresses at once.
//!
//! ```
//! use towpath_lpm::Trie;
//!
//! let mut trie = Trie::default();
//! trie.set((0x0a << 120, 8), "10.0.0.0/8");
//! trie.set((0x0a01 << 112, 16), "10.1.0.0/16");
//! let before = trie.clone();
//! trie.remove((0x0a01 << 112, 16));
//! let addr = 0x0a01_0203 << 96;
//! assert_eq!(before.longest(addr), Some(&"10.1.0.0/16"));
//! assert_eq!(trie.longest(addr), Some(&"10.0.0.0/8"));
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod flat;
mod matching;
mod runs;
mod trie;

pub use flat::Flat;
pub use matching::Matching;
pub use trie::{Bits, Trie};
