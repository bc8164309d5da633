use towpath::Stack;
use towpath::handler::{Conn, ConnAction, Handler};

/// Longest line of a client in bytes.
const LINE_MAX: usize = 1000;

struct Upper;

impl Handler for Upper {
    type State = ();

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let (mut reader, mut writer) = conn.split();
        // An answer is as long as its line, so without room for the longest one, wait.
        while writer.room() >= LINE_MAX {
            let Some(line) = reader.until(b'\n') else {
                let is_too_long = reader.len() > LINE_MAX;
                return if is_too_long { ConnAction::Reset } else { ConnAction::Continue };
            };
            if line.len() > LINE_MAX {
                return ConnAction::Reset;
            }
            writer.write_all(&line.to_ascii_uppercase());
        }
        ConnAction::AwaitRoom
    }
}

fn main() -> Result<(), towpath::StartError> {
    let builder = Stack::builder().rootless().publish("127.0.0.1:7004:7");
    let _stack = builder.serve("0.0.0.0:7", |_shard| Upper).start()?;
    loop {
        std::thread::park();
    }
}
