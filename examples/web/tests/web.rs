//! The service of axum and a client of hyper, over one stack.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use towpath::Stack;
use towpath::tokio::{TcpListener, TcpStream};

#[expect(dead_code, reason = "the example's `main` is not called here")]
#[path = "../src/main.rs"]
mod example;

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
