//! Connects clients of hyper-util over a stack.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::TcpStream;
use crate::stack::Stack;

/// Connects clients of [`hyper_util::client::legacy`] to their servers over a stack. Names are
/// resolved by [`lookup_host_on`](super::lookup_host_on).
///
/// The connections are not encrypted. For https, put a connector of hyper-rustls around this one.
///
/// # Examples
/// ```
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use towpath::tokio::Connector;
///
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let client = Client::builder(TokioExecutor::new()).build(Connector::new(&stack));
/// # let _: Client<_, String> = client;
/// # Ok::<(), towpath::StartError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Connector {
    stack: Stack,
}

impl Connector {
    /// Creates a connector that opens connections of `stack`.
    pub fn new(stack: &Stack) -> Self {
        Self { stack: stack.clone() }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let stack = self.stack.clone();
        Box::pin(async move {
            let stream = TcpStream::connect_on(&stack, endpoint(&uri)?).await?;
            // Disable Nagle's algorithm: hyper writes whole messages, so delaying small segments
            // only adds latency.
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

impl Connection for TcpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Returns the host and port of a URI.
fn endpoint(uri: &Uri) -> io::Result<(String, u16)> {
    let invalid = |why: &str| {
        let message = format!("{uri}: {why}; expected http://HOST[:PORT]/");
        io::Error::new(ErrorKind::InvalidInput, message)
    };
    let host = uri.host().ok_or_else(|| invalid("no host"))?;
    // Remove the brackets around an IPv6 address.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = match (uri.port_u16(), uri.scheme_str()) {
        (Some(port), _) => port,
        (None, Some("http")) => 80,
        (None, Some("https")) => 443,
        (None, _) => return Err(invalid("no port, and an unknown scheme")),
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_the_uri_or_its_scheme() {
        let of = |uri: &str| endpoint(&uri.parse().expect("a URI")).ok();
        let host = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(of("http://a.example/x"), host("a.example", 80));
        assert_eq!(of("https://[2001:db8::1]/"), host("2001:db8::1", 443));
        assert_eq!(of("ftp://a.example:8080/"), host("a.example", 8080));
        assert_eq!(of("ftp://a.example/"), None);
        assert_eq!(of("/x"), None);
    }
}
