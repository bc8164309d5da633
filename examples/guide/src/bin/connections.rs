use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use std::{env, fs, thread};

use towpath::Stack;
use towpath::handler::{
    CloseReason, Conn, ConnAction, ConnId, Handler, HandlerRemote, HandlerShard, ServeOptions,
};

const LINE: &[u8] = b"hello\n";
/// Handshakes that are under way at a time.
const HANDSHAKES: usize = 1000;
/// Ports of the server. A client has some 28,000 ports for connections to each of them.
const PORTS: [u16; 4] = [7001, 7002, 7003, 7004];

/// Sends bytes back.
struct LineEcho;

impl Handler for LineEcho {
    type State = ();

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let (mut reader, mut writer) = conn.split();
        writer.forward(&mut reader);
        ConnAction::Continue
    }
}

/// Opens connections, sends a line on each, and counts the echoes.
struct Clients {
    left: usize,
    echoes: usize,
    all: usize,
    done: Sender<()>,
}

impl Clients {
    fn connect(&mut self, shard: &mut HandlerShard<'_>) {
        let port = PORTS[self.left % PORTS.len()];
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if self.left > 0 && shard.connect(server).is_ok() {
            self.left -= 1;
        }
    }
}

impl Handler for Clients {
    type State = ();

    fn started(&mut self, shard: &mut HandlerShard<'_>, _: HandlerRemote<Self, ()>) {
        (0..HANDSHAKES).for_each(|_| self.connect(shard));
    }

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<()> {
        conn.writer().write_all(LINE);
        self.connect(&mut conn.shard());
        Some(())
    }

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        self.echoes += usize::from(conn.reader().next(LINE.len()).is_some());
        if self.echoes == self.all {
            // An error says that `main` has returned.
            let _ = self.done.send(());
        }
        ConnAction::Continue
    }

    fn refused(&mut self, shard: &mut HandlerShard<'_>, _: ConnId, _: CloseReason) {
        self.left += 1;
        self.connect(shard);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = env::args().nth(1).unwrap_or_default().parse()?;
    let (done, all_done) = mpsc::channel();
    let listen =
        PORTS.iter().fold(ServeOptions::new(), |it, port| it.listen(format!("127.0.0.1:{port}")));
    let builder = Stack::builder().loopback().serve(listen, |_shard| LineEcho);
    let clients = move |_| Clients { left: count, echoes: 0, all: count, done: done.clone() };
    let before = resident_kib()?;
    let stack = builder.serve(ServeOptions::new(), clients).start()?;
    all_done.recv()?;
    let connections: u64 = stack.handlers().iter().map(|it| it.connections).sum();
    let mut out = io::stdout();
    writeln!(out, "{connections} ends, {} bytes each", bytes_each(before, connections)?)?;
    // Idle connections give their buffers back.
    thread::sleep(Duration::from_secs(11));
    writeln!(out, "{connections} idle ends, {} bytes each", bytes_each(before, connections)?)?;
    Ok(())
}

fn bytes_each(before: u64, connections: u64) -> io::Result<u64> {
    Ok(resident_kib()?.saturating_sub(before) * 1024 / connections.max(1))
}

/// Returns the memory of this process that is in use.
fn resident_kib() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.unwrap_or_default().split_whitespace().next();
    words.and_then(|kib| kib.parse().ok()).ok_or_else(|| io::Error::other("no VmRSS"))
}
