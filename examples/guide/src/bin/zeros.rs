use towpath::Stack;
use towpath::handler::{Conn, ConnAction, Handler};

/// Sends endless zeros, as fast as the client reads.
struct Zeros;

impl Handler for Zeros {
    /// Bytes that the handler has written to the connection.
    type State = u64;

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<u64> {
        // Without bytes of the client, `readable` would not be called.
        let mut written = 0;
        self.fill(conn, &mut written);
        Some(written)
    }

    fn readable(&mut self, conn: &mut Conn<'_>, written: &mut u64) -> ConnAction {
        conn.reader().skip(usize::MAX);
        self.fill(conn, written);
        ConnAction::AwaitRoom
    }
}

impl Zeros {
    fn fill(&self, conn: &mut Conn<'_>, written: &mut u64) {
        let mut writer = conn.writer();
        while let Some(mut space) = writer.reserve(4096) {
            space.bytes().fill(0);
            space.commit(4096);
            *written += 4096;
        }
    }
}

fn main() -> Result<(), towpath::StartError> {
    let builder = Stack::builder().rootless().publish("127.0.0.1:7005:7");
    let _stack = builder.serve("0.0.0.0:7", |_shard| Zeros).start()?;
    loop {
        std::thread::park();
    }
}
