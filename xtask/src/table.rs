//! Prints measurements while and after they are made.

use std::fmt::Display;
use std::io::IsTerminal;

/// A Markdown table that prints each row as soon as it is known. Prints nothing if JSON is
/// requested.
pub struct Table {
    is_shown: bool,
}

impl Table {
    pub fn new(is_shown: bool, heads: &[&str]) -> Self {
        if is_shown {
            println!("\n| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
        }
        Self { is_shown }
    }

    pub fn row(&self, cells: &[&dyn Display]) {
        if self.is_shown {
            let cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
            println!("| {} |", cells.join(" | "));
        }
    }
}

/// Shows the current activity on a terminal, replacing the previous text. An empty text clears it.
pub fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{what:70}\r");
    }
}
