//! The services, with clients of hyper over the same stack, and with programs of this machine.

#![allow(clippy::duplicate_mod, reason = "the example `tls` includes the service, too")]

mod programs;
mod tls;

use std::io::{Read, Write};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use towpath::Stack;
use towpath::tokio::{Connector, TcpListener, TcpStream};

#[expect(dead_code, reason = "the example's `main` is not called here")]
#[path = "../../src/main.rs"]
mod example;
#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../examples/tls.rs"]
mod tls_example;

/// A client connection of hyper.
type Sender = http1::SendRequest<Body>;

async fn serve(stack: &Stack) -> std::net::SocketAddr {
    let listener = TcpListener::bind_on(stack, "127.0.0.1:80").await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    tokio::spawn(async { axum::serve(listener, example::service()).await });
    addr
}

async fn connect(stack: &Stack, addr: std::net::SocketAddr) -> Sender {
    let stream = TcpStream::connect_on(stack, addr).await.expect("connected");
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &mut Sender, method: Method, path: &str, body: Body) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).header("host", "here").body(body);
    sender.ready().await.expect("the connection is kept");
    let response = sender.send_request(request.expect("valid")).await.expect("an answer");
    let status = response.status();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8(body.to_vec()).expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_answers_hyper_on_many_kept_connections() {
    let stack = Stack::builder().loopback().start().expect("a stack");
    let addr = serve(&stack).await;
    let clients: Vec<_> = (0..20)
        .map(|number| {
            let stack = stack.clone();
            tokio::spawn(async move {
                let mut sender = connect(&stack, addr).await;
                for round in 0..20 {
                    let path = format!("/hello/{number}-{round}");
                    let answer = ask(&mut sender, Method::GET, &path, Body::empty()).await;
                    assert_eq!(answer, (StatusCode::OK, format!("Hello, {number}-{round}!\n")));
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no panic");
    }
}

#[tokio::test]
async fn axum_reads_a_body_longer_than_the_buffers() {
    const LEN: usize = 1 << 20;
    let stack = Stack::builder().loopback().start().expect("a stack");
    let addr = serve(&stack).await;
    let mut sender = connect(&stack, addr).await;
    let answer = ask(&mut sender, Method::POST, "/length", Body::from("x".repeat(LEN))).await;
    assert_eq!(answer, (StatusCode::OK, LEN.to_string()));
    let answer = ask(&mut sender, Method::GET, "/other", Body::empty()).await;
    assert_eq!(answer.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_client_of_hyper_util_connects_by_name() {
    let stack = Stack::builder().loopback().start().expect("a stack");
    serve(&stack).await;
    let client = Client::builder(TokioExecutor::new()).build(Connector::new(&stack));
    for round in 0..3 {
        let uri = format!("http://localhost/hello/{round}");
        let request = Request::builder().uri(uri).body(Body::empty()).expect("valid");
        let response = client.request(request).await.expect("an answer");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body, format!("Hello, {round}!\n"));
    }
    let request = Request::builder().uri("http://localhost:81/").body(Body::empty());
    let error = client.request(request.expect("valid")).await.expect_err("no server");
    assert!(error.is_connect(), "{error:?}");
}

/// A client on the kernel's sockets, as curl.
#[tokio::test]
async fn axum_answers_a_program_of_this_machine_through_the_gateway() {
    let builder = Stack::builder().rootless().publish("127.0.0.1::80");
    let stack = builder.start().expect("a stack");
    let listener = TcpListener::bind_on(&stack, "0.0.0.0:80").await.expect("a port");
    tokio::spawn(async { axum::serve(listener, example::service()).await });
    let host = stack.published()[0].host;
    let asking = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(host)?;
        stream.write_all(b"GET /hello/you HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    });
    let answer = asking.await.expect("no panic").expect("an answer");
    let is_good = answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("Hello, you!\n");
    assert!(is_good, "{answer}");
}
