//! Parser of scripts, and the syntax tree that it creates.

pub mod cursor;
pub mod packet;
pub mod parse;
pub mod symbols;
pub mod tree;
pub mod value;

pub use cursor::SyntaxError;
pub use parse::parse;
pub use tree::{
    CallSpec, EcnSpec, EventAction, EventTime, IcmpSpec, OptionLine, PacketSpec, Script,
    ScriptEvent, TcpSpec,
};
