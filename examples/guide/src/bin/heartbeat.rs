use std::time::{Duration, Instant};

use towpath::Stack;
use towpath::handler::{Conn, ConnAction, Handler};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(100);
/// Time after which a silent client is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(3);

struct Heartbeat;

impl Handler for Heartbeat {
    /// Time of the last bytes of the client.
    type State = Option<Instant>;

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<Self::State> {
        conn.set_timer(BEAT);
        Some(Some(Instant::now()))
    }

    fn readable(&mut self, conn: &mut Conn<'_>, heard: &mut Self::State) -> ConnAction {
        conn.reader().skip(usize::MAX);
        *heard = Some(Instant::now());
        ConnAction::Continue
    }

    fn timer(&mut self, conn: &mut Conn<'_>, heard: &mut Self::State) -> ConnAction {
        if heard.is_some_and(|at| at.elapsed() >= SILENCE_MAX) {
            return ConnAction::Finish;
        }
        conn.writer().write(b"beat\n");
        conn.set_timer(BEAT);
        ConnAction::Continue
    }
}

fn main() -> Result<(), towpath::StartError> {
    let builder = Stack::builder().rootless().publish("127.0.0.1:7006:7");
    let _stack = builder.serve("0.0.0.0:7", |_shard| Heartbeat).start()?;
    loop {
        std::thread::park();
    }
}
