//! Programs of the classic Berkeley packet filter, as programs attach them to sockets
//! (SO_ATTACH_FILTER).
//!
//! Read McCanne and Jacobson, "The BSD Packet Filter" (1993), for the machine, and Linux's
//! `Documentation/networking/filter.rst` for its extensions.
//!
//! [`Program::check`] accepts exactly the programs that `bpf_check_classic` accepts. Jumps only
//! lead forward, the last instruction returns, and cells of the scratch memory are written before
//! they are read. A run therefore executes at most as many instructions as the program has. A load
//! beyond the packet ends the run with result 0.
//!
//! ```
//! use towpath_cbpf::{Instruction, Program};
//!
//! // tcpdump -ddd 'len > 2': "ld #len; jgt #2, 0, 1; ret #65535; ret #0".
//! let code = [(0x80, 0, 0, 0), (0x25, 0, 1, 2), (0x06, 0, 0, 65535), (0x06, 0, 0, 0)];
//! let code = code.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k });
//! let program = Program::check(&code).expect("Linux accepts the program, too");
//! assert_eq!(program.run(&b"abc"[..]), 65535);
//! assert_eq!(program.run(&b"ab"[..]), 0);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod check;
mod instruction;
mod packet;
mod program;

pub use check::Refused;
pub use instruction::{INSTRUCTIONS_MAX, Instruction};
pub use packet::{Ancillary, FilterPacket, Origin};
pub use program::Program;
