use std::io::{self, Write};
use std::time::Duration;

use towpath::Stack;
use towpath::handler::{Conn, ConnAction, Handler};

struct EchoServer;

impl Handler for EchoServer {
    type State = ();

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let (mut reader, mut writer) = conn.split();
        writer.forward(&mut reader);
        if reader.is_empty() { ConnAction::Continue } else { ConnAction::AwaitRoom }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Stack::builder().rootless().publish("127.0.0.1:7009:7");
    let stack = builder.serve("0.0.0.0:7", |_shard| EchoServer).start()?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        for counters in stack.handlers() {
            writeln!(io::stderr(), "{counters:?}")?;
        }
    }
}
