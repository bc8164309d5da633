//! Compares a packet of the stack with the packet that the script expects.

use crate::flow::timestamps;
use crate::syntax::{EcnSpec, TcpSpec};
use crate::wire::{TcpOption, WireSegment, flag};

/// Kinds of differences that do not fail a script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Relaxations {
    /// Order and padding of the TCP options.
    pub options: bool,
    /// Value and presence of the window scale option.
    pub wscale: bool,
    /// PSH bit of the TCP header.
    pub psh: bool,
    /// Window field of the TCP header.
    pub win: bool,
    /// Buffer sizes that getsockopt(2) returns.
    pub sizes: bool,
    /// Commands and settings that the stack does not support.
    pub commands: bool,
}

impl Relaxations {
    /// Names of all relaxations.
    pub const NAMES: &[&str] = &["options", "wscale", "psh", "win", "sizes", "commands"];

    /// Adds the relaxation with this name. Returns whether the name is known.
    pub fn add(&mut self, name: &str) -> bool {
        let field = match name {
            "options" => &mut self.options,
            "wscale" => &mut self.wscale,
            "psh" => &mut self.psh,
            "win" => &mut self.win,
            "sizes" => &mut self.sizes,
            "commands" => &mut self.commands,
            _ => return false,
        };
        *field = true;
        true
    }
}

/// Returns the name of the first field that differs from the script. TCP timestamps are not
/// compared here, because this requires the state of their clock.
pub fn difference(
    spec: &TcpSpec,
    actual: &WireSegment,
    relax: Relaxations,
) -> Option<&'static str> {
    let ignored = if relax.psh { flag::PSH } else { 0 };
    let is_ecn_right = match spec.ecn {
        EcnSpec::Any => true,
        EcnSpec::Codepoint(ecn) => actual.ecn == ecn,
        EcnSpec::Ect => matches!(actual.ecn, 1 | 2),
    };
    let fields = [
        ("flags", spec.flags & !ignored == actual.flags & !ignored),
        ("sequence number", spec.seq == actual.seq),
        ("length", spec.len == actual.len),
        ("acknowledgement number", spec.ack.is_none_or(|ack| ack == actual.ack)),
        ("window", relax.win || spec.window.is_none_or(|window| window == actual.window)),
        ("urgent pointer", spec.urgent.is_none_or(|urgent| urgent == actual.urgent)),
        ("ECN field", is_ecn_right),
        ("options", same_options(spec, actual, relax)),
    ];
    fields.iter().find(|(_, is_same)| !is_same).map(|(name, _)| *name)
}

fn same_options(spec: &TcpSpec, actual: &WireSegment, relax: Relaxations) -> bool {
    let Some(wanted) = spec.options.as_deref() else { return true };
    let echo = |options: &[TcpOption]| timestamps(options).map(|(_, echo)| echo);
    let (wanted_form, actual_form) = (form(wanted, relax), form(&actual.options, relax));
    wanted_form == actual_form && echo(wanted) == echo(&actual.options)
}

/// Returns the TCP options in the form in which they are compared.
fn form(options: &[TcpOption], relax: Relaxations) -> Vec<String> {
    let is_compared = |option: &&TcpOption| match option {
        TcpOption::Nop | TcpOption::End => !relax.options,
        TcpOption::WindowScale(_) => !relax.wscale,
        _ => true,
    };
    let text = |option: &TcpOption| match option {
        TcpOption::Timestamps { .. } => "TS".to_owned(),
        option => option.to_string(),
    };
    let mut texts: Vec<String> = options.iter().filter(is_compared).map(text).collect();
    if relax.options {
        texts.sort();
    }
    texts
}
