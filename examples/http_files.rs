//! Serves the files of a folder over HTTP/1.1: GET and HEAD, no ranges.
//!
//! `cargo run -p towpath --example http_files FOLDER`, then `curl http://127.0.0.1:8080/`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use towpath::Stack;
use towpath::net::{TcpListener, TcpStream};

/// Bytes that a request may have, its headers included. Longer ones are refused.
const REQUEST_MAX: u64 = 16 << 10;
/// Time that a client has for a request, and for taking a piece of the answer.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder =
        std::env::args_os().nth(1).ok_or("name the folder to serve as the first argument")?;
    let stack = Stack::builder().rootless().publish("127.0.0.1:8080:80").start()?;
    let folder = PathBuf::from(folder);
    writeln!(io::stdout(), "serving {} on http://127.0.0.1:8080/", folder.display())?;
    serve(&stack.listen("0.0.0.0:80")?, folder)?;
    Ok(())
}

/// Serves all clients of a listener, each on a thread.
pub fn serve(listener: &TcpListener, folder: PathBuf) -> io::Result<()> {
    let folder = Arc::new(folder);
    for connection in listener.incoming() {
        let (connection, folder) = (connection?, Arc::clone(&folder));
        // The client has gone, or was too slow: nobody is left to be told.
        thread::spawn(move || answer_all(&connection, &folder).ok());
    }
    Ok(())
}

/// Answers requests until the client ends.
fn answer_all(connection: &TcpStream, folder: &Path) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(request) = Request::read(&mut reader)? {
        match request.file(folder) {
            Ok(file) => send_file(connection, &request, file)?,
            Err(status) => {
                let body = format!("{status}\n");
                send_head(connection, status, body.len() as u64)?;
                if request.method != "HEAD" {
                    (&*connection).write_all(body.as_bytes())?;
                }
            }
        }
    }
    Ok(())
}

/// The first line of a request. Headers are read and do not matter.
struct Request {
    method: String,
    target: String,
}

impl Request {
    /// Reads the next request. None: the client has ended.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut reader = reader.take(REQUEST_MAX);
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut line = String::new();
        while line != "\r\n" && line != "\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no end of the request"));
            }
        }
        let mut words = first.split_whitespace().map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        Ok(Some(Self { method, target }))
    }

    /// Opens the file that is asked for, or gives the status that refuses.
    fn file(&self, folder: &Path) -> Result<File, &'static str> {
        if !["GET", "HEAD"].contains(&self.method.as_str()) {
            return Err("405 Method Not Allowed");
        }
        let path = self.target.split(['?', '#']).next().unwrap_or_default();
        let path = decoded(path).ok_or("400 Bad Request")?;
        let mut file = folder.to_owned();
        for part in Path::new(path.trim_start_matches('/')).components() {
            match part {
                Component::Normal(name) => file.push(name),
                // `..` would lead out of the folder.
                _ => return Err("403 Forbidden"),
            }
        }
        if file.is_dir() {
            file.push("index.html");
        }
        let file = File::open(file).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => "403 Forbidden",
            _ => "404 Not Found",
        })?;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if is_file { Ok(file) } else { Err("404 Not Found") }
    }
}

/// A path without its percent signs (RFC 3986 §2.1). None: not a path.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok().filter(|path| path.starts_with('/') && !path.contains('\0'))
}

fn send_file(mut connection: &TcpStream, request: &Request, file: File) -> io::Result<()> {
    let len = file.metadata()?.len();
    send_head(connection, "200 OK", len)?;
    if request.method != "HEAD" {
        // The length was promised: a file that grows is cut, and one that shrinks is an error.
        let sent = io::copy(&mut file.take(len), &mut connection)?;
        if sent < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn send_head(mut connection: &TcpStream, status: &str, len: u64) -> io::Result<()> {
    connection.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n").as_bytes())
}
