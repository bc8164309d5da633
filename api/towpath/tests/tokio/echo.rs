//! The example of an echo server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::tokio::TcpStream;

use crate::on_both;

#[expect(dead_code, reason = "the example's `main` is not called here")]
#[path = "../../../../examples/tokio_echo.rs"]
mod example;

#[test]
fn clients_get_back_what_they_send() {
    on_both(|stack| async move {
        let serving = stack.clone();
        tokio::spawn(async move { example::on_stack(serving, "7").await });
        for text in ["one", "two"] {
            let mut client = loop {
                match TcpStream::connect_on(&stack, "127.0.0.1:7").await {
                    Ok(client) => break client,
                    // The server does not listen yet.
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            client.write_all(text.as_bytes()).await.expect("written");
            client.shutdown().await.expect("shut down");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("an answer");
            assert_eq!(answer, text);
        }
    });
}
