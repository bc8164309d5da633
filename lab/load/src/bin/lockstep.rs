//! Clients for `cargo lab counts` that send one request at a time, and a server of bytes.
//!
//! ```text
//! lockstep serve PORT                        takes or gives bytes on PORT, a connection at a time
//! lockstep redis HOST:PORT WARM COUNT        GETs on one connection
//! lockstep http HOST:PORT WARM COUNT         requests on one connection
//! lockstep connections HOST:PORT WARM COUNT  requests, each on a connection of its own
//! lockstep send HOST:PORT WARM COUNT         MiB to `serve` on one connection
//! lockstep receive HOST:PORT WARM COUNT      MiB from it
//! ```
//!
//! A client performs WARM units and prints "ready". For each line on standard input, it performs
//! COUNT units and prints "done". The client ends with its standard input. Counters can thus be
//! read before and after the COUNT units while the programs are idle.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // Its output is what it is for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

/// Unit of bulk transfer in bytes, and bytes per read or write.
const MIB: usize = 1 << 20;
const AT_ONCE: usize = 128 << 10;
/// Timeout of an answer, after which the client fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        ["serve", port] => serve(port.parse()?),
        [what, to, warm, count] => {
            let to: SocketAddr = to.parse()?;
            let mut client: Box<dyn FnMut(usize) -> Result<()>> = match *what {
                "redis" => requests(to, REDIS, is_redis_answer)?,
                "http" => requests(to, KEEP_ALIVE, is_http_answer)?,
                "connections" => Box::new(move |count| connections(to, count)),
                "send" => bulk(to, Direction::Send)?,
                "receive" => bulk(to, Direction::Receive)?,
                _ => bail!("{what}: there is no such client"),
            };
            client(warm.parse()?)?;
            say("ready")?;
            let count = count.parse()?;
            for line in std::io::stdin().lines() {
                line?;
                client(count)?;
                say("done")?;
            }
            Ok(())
        }
        _ => bail!("serve PORT, or CLIENT HOST:PORT WARM COUNT"),
    }
}

/// Reports progress to the process that waits for the line.
fn say(what: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    Ok(out.flush()?)
}

const REDIS: &[u8] = b"*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n";
const KEEP_ALIVE: &[u8] = b"GET / HTTP/1.1\r\nHost: counts\r\n\r\n";
const CLOSE: &[u8] = b"GET / HTTP/1.1\r\nHost: counts\r\nConnection: close\r\n\r\n";

/// Returns whether the answer says that the key does not exist.
fn is_redis_answer(answer: &[u8]) -> bool {
    answer == b"$-1\r\n"
}

/// Returns whether the answer is successful and complete; the body always ends with the same text.
fn is_http_answer(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"hello from nginx")
}

/// Creates a client that sends `question` a number of times on one connection.
fn requests(
    to: SocketAddr,
    question: &'static [u8],
    is_answer: fn(&[u8]) -> bool,
) -> Result<Box<dyn FnMut(usize) -> Result<()>>> {
    let mut stream = open(to)?;
    let mut answer = [0; 4096];
    Ok(Box::new(move |count| {
        for _ in 0..count {
            stream.write_all(question)?;
            let mut len = 0;
            while !is_answer(&answer[..len]) {
                let more = stream.read(&mut answer[len..])?;
                ensure!(more > 0, "no answer: {}", String::from_utf8_lossy(&answer[..len]));
                len += more;
            }
        }
        Ok(())
    }))
}

/// Sends `count` requests on separate connections. The server closes first, so that the client has
/// no ports in TIME-WAIT.
fn connections(to: SocketAddr, count: usize) -> Result<()> {
    let mut answer = Vec::new();
    for _ in 0..count {
        let mut stream = open(to)?;
        stream.write_all(CLOSE)?;
        answer.clear();
        stream.read_to_end(&mut answer)?;
        ensure!(is_http_answer(&answer), "no answer: {}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}

fn open(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Direction of the bytes as seen by the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Send,
    Receive,
}

impl Direction {
    const fn letter(self) -> u8 {
        match self {
            Self::Send => b's',
            Self::Receive => b'r',
        }
    }
}

/// Creates a client that transfers a number of MiB on one connection, and waits until all have
/// arrived.
fn bulk(to: SocketAddr, direction: Direction) -> Result<Box<dyn FnMut(usize) -> Result<()>>> {
    let mut stream = open(to)?;
    Ok(Box::new(move |count| {
        let bytes = count * MIB;
        stream.write_all(&[direction.letter()])?;
        stream.write_all(&(bytes as u64).to_be_bytes())?;
        match direction {
            Direction::Send => {
                give(&mut stream, bytes)?;
                stream.read_exact(&mut [0])?;
            }
            Direction::Receive => take(&mut stream, bytes)?,
        }
        Ok(())
    }))
}

fn give(stream: &mut TcpStream, bytes: usize) -> Result<()> {
    let piece = [0; AT_ONCE];
    for _ in 0..bytes / AT_ONCE {
        stream.write_all(&piece)?;
    }
    Ok(())
}

fn take(stream: &mut TcpStream, mut bytes: usize) -> Result<()> {
    let mut piece = [0; AT_ONCE];
    while bytes > 0 {
        let some = stream.read(&mut piece[..bytes.min(AT_ONCE)])?;
        ensure!(some > 0, "the connection ended");
        bytes -= some;
    }
    Ok(())
}

fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    loop {
        let (stream, _) = listener.accept()?;
        // Answer until the client closes, which is no failure of the server.
        let _ = answer(stream);
    }
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let (mut letter, mut bytes) = ([0], [0; 8]);
        stream.read_exact(&mut letter)?;
        stream.read_exact(&mut bytes)?;
        let bytes = u64::from_be_bytes(bytes) as usize;
        if letter[0] == Direction::Send.letter() {
            take(&mut stream, bytes)?;
            stream.write_all(&[0])?;
        } else {
            give(&mut stream, bytes)?;
        }
    }
}
