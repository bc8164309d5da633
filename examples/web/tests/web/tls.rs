//! Clients of TLS over the stack that the server uses.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Version};
use http_body_util::BodyExt;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use towpath::Stack;
use towpath::tokio::{Connector, TcpListener, TcpStream};

use crate::{example, tls_example};

/// Starts the server, and returns the configuration of a client that trusts its certificate.
async fn serve(stack: &Stack) -> ClientConfig {
    let (acceptor, certificate) = tls_example::self_signed("localhost").expect("a certificate");
    let listener = TcpListener::bind_on(stack, "127.0.0.1:443").await.expect("a port");
    let service = example::service();
    tokio::spawn(async move { tls_example::serve(&listener, &acceptor, &service).await });
    trusting(certificate)
}

fn trusting(certificate: CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("valid");
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_rustls_exchanges_megabytes_in_both_directions() {
    const LEN: usize = 4 << 20;
    let stack = Stack::builder().loopback().start().expect("a stack");
    let (acceptor, certificate) = tls_example::self_signed("localhost").expect("a certificate");
    let listener = TcpListener::bind_on(&stack, "127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    let echo = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let (mut reader, mut writer) = tokio::io::split(acceptor.accept(stream).await?);
        tokio::io::copy(&mut reader, &mut writer).await?;
        writer.shutdown().await
    });
    let connector = TlsConnector::from(Arc::new(trusting(certificate)));
    let stream = TcpStream::connect_on(&stack, addr).await.expect("connected");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = connector.connect(name, stream).await.expect("a handshake");
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        writer.write_all(&sent).await?;
        writer.shutdown().await
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.expect("the end of the stream");
    assert!(received == expected);
    writer.await.expect("no panic").expect("sent");
    echo.await.expect("no panic").expect("echoed");
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_ends_the_handshake() {
    let stack = Stack::builder().loopback().start().expect("a stack");
    serve(&stack).await;
    let (_, other) = tls_example::self_signed("localhost").expect("a certificate");
    let connector = TlsConnector::from(Arc::new(trusting(other)));
    let stream = TcpStream::connect_on(&stack, "127.0.0.1:443").await.expect("connected");
    let name = ServerName::try_from("localhost").expect("a name");
    let error = connector.connect(name, stream).await.expect_err("not trusted");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_rustls_requests_over_the_connector_with_http2() {
    let stack = Stack::builder().loopback().start().expect("a stack");
    let config = serve(&stack).await;
    let https = HttpsConnectorBuilder::new().with_tls_config(config).https_only();
    let https = https.enable_all_versions().wrap_connector(Connector::new(&stack));
    let client = Client::builder(TokioExecutor::new()).build(https);
    let requests: Vec<_> = (0..50)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let uri = format!("https://localhost/hello/{number}");
                let request = Request::builder().uri(uri).body(Body::empty()).expect("valid");
                let response = client.request(request).await.expect("an answer");
                assert_eq!(response.version(), Version::HTTP_2);
                let body = response.into_body().collect().await.expect("a body").to_bytes();
                assert_eq!(body, format!("Hello, {number}!\n"));
            })
        })
        .collect();
    for request in requests {
        request.await.expect("no panic");
    }
}
