use towpath::Stack;
use towpath::handler::{CloseReason, Conn, ConnAction, ConnId, Handler, HandlerShard};

/// Longest line of a client in bytes.
const LINE_MAX: usize = 1000;

#[derive(Default)]
pub struct Chat {
    members: Vec<ConnId>,
}

impl Chat {
    fn tell_others(&self, shard: &mut HandlerShard<'_>, from: ConnId, line: &str) {
        for id in self.members.iter().filter(|id| **id != from) {
            // A client that does not read its lines is reset.
            if shard.write(*id, line.as_bytes()).is_err() {
                shard.reset(*id);
            }
        }
    }
}

impl Handler for Chat {
    /// The client's name.
    type State = String;

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<String> {
        let (id, name) = (conn.id(), format!("guest {}", conn.peer_addr().port()));
        self.members.push(id);
        self.tell_others(&mut conn.shard(), id, &format!("{name} is here\n"));
        Some(name)
    }

    fn readable(&mut self, conn: &mut Conn<'_>, name: &mut String) -> ConnAction {
        while let Some(line) = conn.reader().until(b'\n') {
            let line = format!("{name}: {}\n", String::from_utf8_lossy(line).trim_end());
            let id = conn.id();
            self.tell_others(&mut conn.shard(), id, &line);
        }
        if conn.reader().len() > LINE_MAX { ConnAction::Reset } else { ConnAction::Continue }
    }

    fn closed(&mut self, shard: &mut HandlerShard<'_>, id: ConnId, name: String, _: CloseReason) {
        self.members.retain(|member| *member != id);
        self.tell_others(shard, id, &format!("{name} has left\n"));
    }
}

fn main() -> Result<(), towpath::StartError> {
    let builder = Stack::builder().rootless().publish("127.0.0.1:7007:7");
    let _stack = builder.serve("0.0.0.0:7", |_shard| Chat::default()).start()?;
    loop {
        std::thread::park();
    }
}
