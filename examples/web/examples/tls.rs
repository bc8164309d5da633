//! The service over TLS, with HTTP/1.1 and HTTP/2, on a TCP/IP stack in this process.
//!
//! The certificate is created at the start, and signed by itself, so curl needs `-k`.
//!
//! ```console
//! $ cargo run -p towpath-example-web --example tls &
//! $ curl -k https://127.0.0.1:8443/hello/towpath
//! Hello, towpath!
//! ```

use std::io;
use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use towpath::tokio::{TcpListener, TcpStream};

#[expect(dead_code, reason = "the `main` of the service without TLS is not called here")]
#[path = "../src/main.rs"]
mod web;

#[tokio::main]
async fn main() -> io::Result<()> {
    towpath::Stack::builder().rootless().publish("127.0.0.1:8443:443").start()?.set_default();
    let listener = TcpListener::bind("0.0.0.0:443").await?;
    let (acceptor, _) = self_signed("localhost").map_err(io::Error::other)?;
    serve(&listener, &acceptor, &web::service()).await
}

/// Creates a certificate for `name`, and the acceptor of a server that presents it.
pub fn self_signed(
    name: &str,
) -> Result<(TlsAcceptor, CertificateDer<'static>), Box<dyn std::error::Error + Send + Sync>> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
    let builder = ServerConfig::builder().with_no_client_auth();
    let chain = vec![certificate.clone()];
    let mut config = builder.with_single_cert(chain, PrivatePkcs8KeyDer::from(key).into())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

/// Serves each connection on a task of its own.
///
/// # Errors
/// Returns the error of the listener, such as the end of its stack.
pub async fn serve(
    listener: &TcpListener,
    acceptor: &TlsAcceptor,
    service: &Router,
) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let (acceptor, service) = (acceptor.clone(), service.clone());
        // A failed handshake or request ends only its own connection.
        tokio::spawn(async move { serve_connection(stream, &acceptor, service).await });
    }
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    service: Router,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TokioIo::new(acceptor.accept(stream).await?);
    let service = TowerToHyperService::new(service);
    auto::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
}
