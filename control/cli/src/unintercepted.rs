//! Handles programs of the run that use the kernel's sockets instead of the stack. Reports each
//! program once. With `--strict`, such a program is not executed.

use std::collections::HashSet;

use towpath_engine::UninterceptedProgram;

use crate::messages::Messages;

/// Maximum number of programs that are reported to the user individually. The counter `outsiders`
/// includes all of them.
const NAMED_MAX: usize = 64;

/// Decides whether a program that would use the kernel's sockets may be executed, and reports it.
pub struct ExecGate {
    messages: Messages,
    strict: bool,
    named: HashSet<Vec<u8>>,
}

impl ExecGate {
    /// Creates the gate. With `strict`, no such program may be executed.
    pub fn new(messages: Messages, strict: bool) -> Self {
        Self { messages, strict, named: HashSet::new() }
    }

    /// Returns whether the program may be executed, and reports it to the user once. Does not
    /// block.
    pub fn may_pass(&mut self, outsider: UninterceptedProgram<'_>) -> bool {
        if !self.named.contains(outsider.path) && self.named.len() < NAMED_MAX {
            self.named.insert(outsider.path.to_owned());
            self.tell(outsider);
        }
        !self.strict
    }

    fn tell(&self, UninterceptedProgram { pid, path, why }: UninterceptedProgram<'_>) {
        // Escape control characters in the path, because a terminal would interpret them.
        let path = String::from_utf8_lossy(path);
        let path = path.escape_debug();
        if self.strict {
            let text = format!("{path} {why}: refused (--strict), process {pid} cannot execute it");
            self.messages.put_error(&text);
        } else {
            self.messages.post(&format!(
                "{path} {why}: its sockets are this host's, not the stack's (process {pid} \
                 executes it; --strict refuses such programs)"
            ));
        }
        if self.named.len() == NAMED_MAX {
            self.messages.post("further programs that leave the stack are not named");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_shm::image::Outside;

    #[test]
    fn each_is_named_once_and_not_endlessly() {
        let mut gate = ExecGate::new(Messages::start(true).unwrap(), false);
        for n in 0..3 * NAMED_MAX {
            let path = format!("/bin/{}", n % (2 * NAMED_MAX));
            let why = Outside::Static;
            assert!(gate.may_pass(UninterceptedProgram { pid: 1, path: path.as_bytes(), why }));
        }
        assert_eq!(gate.named.len(), NAMED_MAX);
        gate.strict = true;
        assert!(!gate.may_pass(UninterceptedProgram { pid: 1, path: b"/x", why: Outside::Go }));
    }
}
