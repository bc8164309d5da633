//! Serves metrics to scrapers by HTTP/1.1, on a socket of the host's kernel.
//!
//! Each connection has a thread, carries one request and is closed. Numbers and times are limited.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request, Status};

/// Maximum number of connections at a time. Further ones get the status 503.
const CONNECTIONS_MAX: usize = 16;
/// Maximum length of a request in bytes.
const REQUEST_LEN_MAX: usize = 8 << 10;
/// Maximum number of header fields of a request.
const HEADERS_MAX: usize = 64;
/// Maximum time in which a client must send its request.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// Maximum time in which a client must receive the whole answer. Otherwise a few clients that read
/// single bytes would use up all connections.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Pause after accept(2) has failed, for example because no descriptor is free.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Path of the metrics.
const PATH: &str = "/metrics";

/// An answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl HttpAnswer {
    /// Creates the answer with the metrics.
    pub fn metrics(content_type: &'static str, body: String) -> Self {
        Self { status: "200 OK", content_type, body }
    }

    /// Creates an answer with a line of text.
    pub fn line(status: &'static str, line: &str) -> Self {
        let body = format!("{line}\n");
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }
}

/// Formats the head of the answer.
impl fmt::Display for HttpAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, content_type, body } = self;
        write!(
            f,
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n",
            body.len()
        )?;
        if *status == METHOD_NOT_ALLOWED {
            f.write_str("Allow: GET, HEAD\r\n")?;
        }
        f.write_str("\r\n")
    }
}

const METHOD_NOT_ALLOWED: &str = "405 Method Not Allowed";

/// Answers requests until the process ends. `metrics` makes the answer to a request for the path
/// of the metrics.
pub fn serve(
    listener: &TcpListener,
    metrics: impl Fn() -> HttpAnswer + Send + Sync + 'static,
) -> ! {
    let is_local = listener.local_addr().is_ok_and(|own| own.ip().is_loopback());
    let (open, metrics) = (Arc::new(AtomicUsize::new(0)), Arc::new(metrics));
    loop {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_AGAIN_AFTER);
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            let busy = HttpAnswer::line("503 Service Unavailable", "too many connections");
            // Ignore errors here and below: the client has closed the connection.
            let _ = stream.set_nonblocking(true);
            let _ = stream.write_all(format!("{busy}{}", busy.body).as_bytes());
            continue;
        }
        let (counted, metrics) = (OpenConnection(Arc::clone(&open)), Arc::clone(&metrics));
        let thread = std::thread::Builder::new().name("towpath-metrics".into());
        // If no thread can be created, the connection is closed.
        let _ = thread.spawn(move || {
            let _counted = counted;
            let _ = answer_one(&mut stream, is_local, &*metrics);
        });
    }
}

/// Decrements the number of open connections when the connection is closed.
struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer_one(
    stream: &mut TcpStream,
    is_local: bool,
    metrics: &impl Fn() -> HttpAnswer,
) -> io::Result<()> {
    let head = read_head(stream)?;
    let (answer, with_body) = answer(&head, is_local, metrics);
    let mut bytes = answer.to_string().into_bytes();
    if with_body {
        bytes.extend_from_slice(answer.body.as_bytes());
    }
    write_within(stream, &bytes, ANSWER_WITHIN)?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Sends all bytes within a time limit.
fn write_within(stream: &mut TcpStream, mut bytes: &[u8], limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(time_left(until)?))?;
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the time until a deadline.
///
/// # Errors
/// Fails if the deadline has passed.
fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads a request up to the empty line after its header, or up to its maximum length.
fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + REQUEST_WITHIN;
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    while head.len() < REQUEST_LEN_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(time_left(until)?))?;
        match stream.read(&mut chunk)? {
            0 => break,
            len => head.extend_from_slice(&chunk[..len]),
        }
    }
    Ok(head)
}

/// Returns the answer to a request, and whether the client wants its body.
fn answer(head: &[u8], is_local: bool, metrics: &impl Fn() -> HttpAnswer) -> (HttpAnswer, bool) {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let parsed = request.parse(head);
    let (Ok(Status::Complete(_)), Some(method), Some(path)) =
        (parsed, request.method, request.path)
    else {
        return (HttpAnswer::line("400 Bad Request", "not a request of HTTP/1.1"), true);
    };
    let with_body = method != "HEAD";
    let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let host = request.headers.iter().find(is_host).map(|header| header.value);
    let answer = if is_local && !host.is_none_or(is_loopback_name) {
        // A page of another site could otherwise read the metrics by a name that it resolves to
        // the loopback address.
        HttpAnswer::line("403 Forbidden", "the Host of the request is not this host")
    } else if !["GET", "HEAD"].contains(&method) {
        HttpAnswer::line(METHOD_NOT_ALLOWED, "only GET and HEAD are supported")
    } else {
        match path.split('?').next() {
            Some(PATH) => metrics(),
            Some("/") => HttpAnswer::line("200 OK", "towpath: the metrics are at /metrics"),
            _ => HttpAnswer::line("404 Not Found", "the metrics are at /metrics"),
        }
    };
    (answer, with_body)
}

/// Returns whether the value of a header `Host` is a loopback address or `localhost`.
fn is_loopback_name(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = host.parse::<SocketAddr>().map(|address| address.ip());
    let address = address.or_else(|_| name.trim_matches(['[', ']']).parse());
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> HttpAnswer {
        HttpAnswer::metrics("text/plain; version=0.0.4", "towpath_a 1\n".to_owned())
    }

    fn status(request: &str) -> &'static str {
        answer(request.as_bytes(), true, &metrics).0.status
    }

    #[test]
    fn requests_have_the_status_of_http() {
        for (request, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\n\r\n", "200"),
            ("GET /metrics?name[]=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: [::1]:9100\r\n\r\n", "200"),
            ("GET / HTTP/1.0\r\n\r\n", "200"),
            ("GET /metricsx HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            ("GET /metrics HTTP/1.1\r\nHost: example.net:9100\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost.example.net\r\n\r\n", "403"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n", "400"),
            ("", "400"),
        ] {
            assert!(status(request).starts_with(wanted), "{request:?}: {}", status(request));
        }
        let other = b"GET /metrics HTTP/1.1\r\nHost: example.net\r\n\r\n";
        assert_eq!(answer(other, false, &metrics).0, metrics());
        assert!(!answer(b"HEAD /metrics HTTP/1.1\r\n\r\n", true, &metrics).1);
    }

    fn exchange(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_scraper_gets_the_text_and_connections_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, metrics));
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let answer = exchange(address, request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Length: 12\r\n"), "{head}");
        assert_eq!(body, "towpath_a 1\n");
        // Connections that send nothing use up the places, until they are closed.
        let silent: Vec<_> =
            (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut busy = String::new();
        TcpStream::connect(address).unwrap().read_to_string(&mut busy).unwrap();
        assert!(busy.starts_with("HTTP/1.1 503 "), "{busy}");
        drop(silent);
        while !exchange(address, request).starts_with("HTTP/1.1 200") {}
    }

    /// Tests that progress does not extend the time for an answer. The client reads all the time,
    /// but the deadline has passed before the first byte.
    #[test]
    fn an_answer_has_a_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let late = write_within(&mut stream, b"late", Duration::ZERO).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        write_within(&mut stream, b"in time", HOUR).unwrap();
        drop(stream);
        let mut received = String::new();
        client.read_to_string(&mut received).unwrap();
        assert_eq!(received, "in time");
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_long_request_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, metrics));
        // The server reads this whole request. Unread bytes would reset the connection before the
        // client has received the answer.
        let begin = "GET /";
        let request = format!("{begin}{}", "x".repeat(REQUEST_LEN_MAX - begin.len()));
        let answer = exchange(address, &request);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}
