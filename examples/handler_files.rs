//! Serves the files of a folder over HTTP/1.1 with an event handler, and parses requests in place
//! by `httparse`: GET and HEAD, no ranges.
//!
//! `cargo run -p towpath --example handler_files FOLDER`, then `curl http://127.0.0.1:8080/`.
//! Files are read on the thread of the stack, so the folder must be on a fast disk, or cached.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use towpath::Stack;
use towpath::handler::{ByteReader, ByteWriter, Conn, ConnAction, Handler};

/// Longest head of a request in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum number of header lines of a request.
const LINES_MAX: usize = 100;
/// Space for the head of an answer.
const ANSWER_HEAD_MAX: usize = 200;
/// Bytes of a file that are read at once.
const PIECE: usize = 32 << 10;
/// Time after which a connection ends if no byte of a request arrives, and no piece of an answer is
/// taken.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Files {
    folder: PathBuf,
}

/// Answer that is not yet complete.
#[derive(Default)]
pub struct Answer {
    /// File to send, and the number of bytes that are left of it.
    file: Option<(File, u64)>,
    /// Whether the connection ends after the answer.
    is_last: bool,
}

/// Head of a request.
struct RequestHead {
    len: usize,
    is_head: bool,
    is_last: bool,
    file: Result<File, &'static str>,
}

impl Files {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Answers requests in order, until one is incomplete or the send buffer is full.
    fn answer_all(&self, conn: &mut Conn<'_>, answer: &mut Answer) -> io::Result<ConnAction> {
        let (mut reader, mut writer) = conn.split();
        loop {
            if !answer.send_file(&mut writer)? {
                return Ok(ConnAction::AwaitRoom);
            }
            if answer.is_last {
                return Ok(ConnAction::Finish);
            }
            if writer.room() < ANSWER_HEAD_MAX {
                return Ok(ConnAction::AwaitRoom);
            }
            let Some(request) = self.parse(&mut reader)? else { return Ok(ConnAction::Continue) };
            reader.skip(request.len);
            answer.begin(request, &mut writer)?;
        }
    }

    /// Parses the next request in the receive buffer; `None` if it is incomplete.
    fn parse(&self, reader: &mut ByteReader<'_>) -> io::Result<Option<RequestHead>> {
        let unread = reader.len().min(HEAD_MAX);
        let bytes = reader.peek(unread).unwrap_or_default();
        let mut headers = [httparse::EMPTY_HEADER; LINES_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let len = match request.parse(bytes).map_err(io::Error::other)? {
            httparse::Status::Complete(len) => len,
            httparse::Status::Partial if unread == HEAD_MAX => {
                return Err(io::Error::other("the head is too long"));
            }
            httparse::Status::Partial => return Ok(None),
        };
        let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        let is_close = |header: &httparse::Header<'_>| {
            header.name.eq_ignore_ascii_case("connection")
                && header.value.eq_ignore_ascii_case(b"close")
        };
        let is_last = request.version == Some(0) || request.headers.iter().any(is_close);
        let file = match method {
            "GET" | "HEAD" => self.open(target),
            _ => Err("405 Method Not Allowed"),
        };
        // A body would follow the head.
        let is_last = is_last || !matches!(method, "GET" | "HEAD");
        Ok(Some(RequestHead { len, is_head: method == "HEAD", is_last, file }))
    }

    fn open(&self, target: &str) -> Result<File, &'static str> {
        let path = target.split('?').next().unwrap_or("").strip_prefix('/');
        let path = Path::new(path.ok_or("400 Bad Request")?);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err("403 Forbidden");
        }
        let mut path = self.folder.join(path);
        if path.is_dir() {
            path.push("index.html");
        }
        if path.is_file() { File::open(path).map_err(|_| NOT_FOUND) } else { Err(NOT_FOUND) }
    }
}

const NOT_FOUND: &str = "404 Not Found";

impl Answer {
    /// Writes the head of an answer, for which there is room.
    fn begin(&mut self, request: RequestHead, writer: &mut ByteWriter<'_>) -> io::Result<()> {
        self.is_last = request.is_last;
        match request.file {
            Ok(file) => {
                let len = file.metadata()?.len();
                write!(writer, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
                self.file = (!request.is_head).then_some((file, len));
            }
            Err(status) => {
                let len = status.len() + 1;
                write!(writer, "HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n")?;
                if !request.is_head {
                    writeln!(writer, "{status}")?;
                }
            }
        }
        Ok(())
    }

    /// Reads the file into the send buffer. Returns false if the buffer is full.
    fn send_file(&mut self, writer: &mut ByteWriter<'_>) -> io::Result<bool> {
        while let Some((file, left)) = &mut self.file
            && *left > 0
        {
            let n = writer.room().min(PIECE).min(usize::try_from(*left).unwrap_or(PIECE));
            let Some(mut space) = writer.reserve(n).filter(|_| n > 0) else { return Ok(false) };
            // A file that has become shorter ends the connection, because its length was sent.
            let n = match file.read(space.bytes())? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => n,
            };
            space.commit(n);
            *left -= n as u64;
        }
        self.file = None;
        Ok(true)
    }
}

impl Handler for Files {
    type State = Answer;

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<Answer> {
        conn.set_timer(PATIENCE);
        Some(Answer::default())
    }

    fn readable(&mut self, conn: &mut Conn<'_>, answer: &mut Answer) -> ConnAction {
        conn.set_timer(PATIENCE);
        self.answer_all(conn, answer).unwrap_or(ConnAction::Reset)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("name the folder as the first argument")?;
    let folder = PathBuf::from(folder);
    let builder = Stack::builder().rootless().publish("127.0.0.1:8080:80");
    let make = {
        let folder = folder.clone();
        move |_shard| Files::new(folder.clone())
    };
    let _stack = builder.serve("0.0.0.0:80", make).start()?;
    writeln!(io::stdout(), "serving {} on http://127.0.0.1:8080/", folder.display())?;
    loop {
        std::thread::park();
    }
}
