//! HTTP requests (RFC 9112), and the URLs from which they are created.

use std::fmt::Write as _;

use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Uri};
use serde::Serialize;

use crate::plan::{LoadPlanError, message};

/// HTTP/1.1 request that users send.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HttpRequest {
    /// Method of the request, for example `GET`.
    pub method: String,
    /// Path and query of the request, for example `/index.html`.
    pub path: String,
    /// Value of the Host header. `None` selects the name of the target. A Host header in `headers`
    /// overrides both.
    pub host: Option<String>,
    /// Additional headers in the order in which they are sent. Each overrides the default header of
    /// its name.
    pub headers: Vec<Header>,
    /// Body of the request. Its length is sent as Content-Length.
    #[serde(serialize_with = "message")]
    pub body: Vec<u8>,
}

/// Header of an HTTP request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Header {
    /// Name of the header, for example `Accept`.
    pub name: String,
    /// Value of the header without surrounding spaces.
    pub value: String,
}

/// Server and path that a URL contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpUrl {
    /// Host and port of the server in the format of [`Target::resolve`](crate::Target::resolve).
    pub server: String,
    /// Value for the Host header.
    pub host: String,
    /// Path and query of the URL.
    pub path: String,
}

impl HttpUrl {
    /// Parses a URL such as `http://127.0.0.1:8080/index.html`. `None` if the text has no scheme.
    ///
    /// # Errors
    /// Returns an error if the scheme is not http, or if the host, the port or the path is invalid.
    pub fn parse(text: &str) -> Result<Option<Self>, LoadPlanError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
        let wrong = |why: &str| LoadPlanError::Url { url: text.into(), why: why.into() };
        if scheme.eq_ignore_ascii_case("https") {
            return Err(wrong("HTTPS is not supported, only plain HTTP"));
        }
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(wrong("the scheme is not http"));
        }
        // Remove the fragment, which is not sent to the server (RFC 9110 §7.1).
        let rest = rest.split('#').next().unwrap_or_default();
        let uri: Uri =
            format!("http://{rest}").parse().map_err(|error| wrong(&format!("{error}")))?;
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a user and password go into a header: Authorization"));
        }
        let port = match (authority.port_u16(), authority.as_str().ends_with(']')) {
            (Some(port), _) => port,
            (None, false) if authority.host().len() < authority.as_str().len() => {
                return Err(wrong("the port is not 1 to 65535"));
            }
            (None, _) => PORT,
        };
        let path = uri.path_and_query().map_or("/", |it| it.as_str());
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let server = format!("{}:{port}", authority.host());
        Ok(Some(Self { server, host: authority.as_str().to_owned(), path }))
    }
}

/// Default port of URLs with the scheme http (RFC 9110 §4.2.1).
const PORT: u16 = 80;

impl Header {
    /// Parses a header of the form `Name: value`.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid header.
    pub fn parse(text: &str) -> Result<Self, LoadPlanError> {
        let wrong = || LoadPlanError::Header { header: text.into() };
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let header = Self { name: name.to_owned(), value: value.trim().to_owned() };
        header.is_valid().then_some(header).ok_or_else(wrong)
    }

    fn is_valid(&self) -> bool {
        HeaderName::from_bytes(self.name.as_bytes()).is_ok()
            && HeaderValue::from_bytes(self.value.as_bytes()).is_ok()
    }
}

impl HttpRequest {
    /// Creates a GET request for a path, without additional headers and without a body.
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: "GET".into(),
            path: path.into(),
            host: None,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Returns whether answers to this request have no body, regardless of their headers (RFC 9112
    /// §6.3).
    pub(crate) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    pub(crate) fn check(&self) -> Result<(), LoadPlanError> {
        if !self.path.starts_with('/') || self.path.bytes().any(|it| it <= b' ' || it == 0x7f) {
            return Err(LoadPlanError::Path { path: self.path.clone() });
        }
        // Refuse the method CONNECT, because its answer is a tunnel instead of a message.
        let method = Method::from_bytes(self.method.as_bytes());
        if !method.is_ok_and(|it| it != Method::CONNECT) {
            return Err(LoadPlanError::Method { method: self.method.clone() });
        }
        let host = self.host.iter().map(|it| Header { name: "Host".into(), value: it.clone() });
        if let Some(bad) = self.headers.iter().cloned().chain(host).find(|it| !it.is_valid()) {
            return Err(LoadPlanError::Header { header: format!("{}: {}", bad.name, bad.value) });
        }
        let computed = [CONTENT_LENGTH, TRANSFER_ENCODING];
        match self.headers.iter().find(|it| computed.iter().any(|name| it.is(name.as_str()))) {
            Some(it) => Err(LoadPlanError::Computed { name: it.name.clone() }),
            None => Ok(()),
        }
    }

    /// Encodes the request in the format in which it is sent.
    pub(crate) fn bytes(&self, target: &str, stays: bool) -> Vec<u8> {
        let host = self.host.as_deref().unwrap_or(target);
        let agent = concat!("towpath-load/", env!("CARGO_PKG_VERSION"));
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let mut defaults = vec![(HOST.as_str(), "Host", host)];
        defaults.extend([("user-agent", "User-Agent", agent), ("accept", "Accept", "*/*")]);
        if !stays {
            defaults.push(("connection", "Connection", "close"));
        }
        for (name, shown, value) in defaults {
            if !self.headers.iter().any(|it| it.is(name)) {
                let _ = write!(text, "{shown}: {value}\r\n");
            }
        }
        for it in &self.headers {
            let _ = write!(text, "{}: {}\r\n", it.name, it.value);
        }
        // Without a body, a method that defines a meaning for a body should send Content-Length 0
        // (RFC 9110 §8.6).
        let has_meaning = ["POST", "PUT", "PATCH"].contains(&&*self.method);
        if !self.body.is_empty() || has_meaning {
            let _ = write!(text, "Content-Length: {}\r\n", self.body.len());
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Header {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> [String; 3] {
        let it = HttpUrl::parse(text).expect("a valid URL").expect("a scheme");
        [it.server, it.host, it.path]
    }

    #[test]
    fn urls_have_a_server_a_host_header_and_a_path() {
        let cases = [
            ("http://127.0.0.1:8080/a/b?c=d&e", ["127.0.0.1:8080", "127.0.0.1:8080", "/a/b?c=d&e"]),
            ("http://example.net", ["example.net:80", "example.net", "/"]),
            ("HTTP://[::1]:7/", ["[::1]:7", "[::1]:7", "/"]),
            ("http://[::1]/x#part", ["[::1]:80", "[::1]", "/x"]),
            ("http://example.net?q=1", ["example.net:80", "example.net", "/?q=1"]),
        ];
        for (text, wanted) in cases {
            assert_eq!(url(text), wanted, "{text}");
        }
        for text in ["127.0.0.1:80", "example.net", "[::1]:7"] {
            assert_eq!(HttpUrl::parse(text), Ok(None), "{text}");
        }
        for text in [
            "https://example.net/",
            "ftp://example.net/",
            "http://",
            "http:///path",
            "http://example.net:99999/",
            "http://example.net:/",
            "http://user:word@example.net/",
            "http://example.net/a b",
        ] {
            let error = HttpUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn headers_of_the_user_replace_those_of_every_request() {
        let mut request = HttpRequest::get("/p");
        let plain = request.bytes("h:1", true);
        let agent = concat!("towpath-load/", env!("CARGO_PKG_VERSION"));
        let wanted =
            format!("GET /p HTTP/1.1\r\nHost: h:1\r\nUser-Agent: {agent}\r\nAccept: */*\r\n\r\n");
        assert_eq!(String::from_utf8_lossy(&plain), wanted);
        let headers = ["host: other", "ACCEPT: text/html", "X-Empty:", "User-Agent: me"];
        request.headers = headers.map(|it| Header::parse(it).expect(it)).to_vec();
        request.method = "PUT".into();
        request.body = b"\0body".to_vec();
        let wanted = "PUT /p HTTP/1.1\r\nConnection: close\r\nhost: other\r\nACCEPT: text/html\r\n\
                      X-Empty: \r\nUser-Agent: me\r\nContent-Length: 5\r\n\r\n\0body";
        assert_eq!(String::from_utf8_lossy(&request.bytes("h:1", false)), wanted);
        assert_eq!(request.check(), Ok(()));
        request.body.clear();
        assert!(request.bytes("h", true).ends_with(b"\r\nContent-Length: 0\r\n\r\n"));
    }

    #[test]
    fn requests_that_would_be_others_are_refused() {
        for text in ["no colon", ": value", "a b: c", "name: a\r\nb: c", "näme: x"] {
            assert!(Header::parse(text).is_err(), "{text}");
        }
        let changes: [fn(&mut HttpRequest); 6] = [
            |it| it.path = "/a b".into(),
            |it| it.path = "index.html".into(),
            |it| it.method = "GET /".into(),
            |it| it.method = "CONNECT".into(),
            |it| it.host = Some("a\r\nb: c".into()),
            |it| it.headers = vec![Header { name: "content-length".into(), value: "3".into() }],
        ];
        for change in changes {
            let mut request = HttpRequest::get("/");
            change(&mut request);
            assert!(request.check().is_err(), "{request:?}");
        }
    }
}
