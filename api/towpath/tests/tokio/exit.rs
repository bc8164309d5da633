//! The end of a process whose stacks were dropped in a runtime.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use towpath::Stack;
use towpath::tokio::TcpStream;

use crate::multi_thread;

/// Variable of a child process: the port of the parent to which the child sends.
const CHILD: &str = "TOWPATH_TEST_TOKIO_CHILD";

/// Fills all buffers on the way to the parent, and drops the stack in the runtime.
async fn drop_with_unsent_data(port: String) {
    let stack = Stack::builder().rootless().start().expect("a stack");
    let addr = format!("10.0.2.2:{port}");
    let stream = TcpStream::connect_on(&stack, addr).await.expect("connected");
    let mut sent = 0;
    stream.writable().await.expect("room");
    while let Ok(len) = stream.try_write(&[7; 10_000]) {
        sent += len;
    }
    writeln!(std::io::stdout(), "sent {sent}").expect("the parent reads");
}

#[test]
fn the_end_of_the_process_sends_the_data_of_dropped_stacks() {
    if let Ok(port) = std::env::var(CHILD) {
        return multi_thread().block_on(drop_with_unsent_data(port));
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("bound").port();
    let name = "exit::the_end_of_the_process_sends_the_data_of_dropped_stacks";
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, port.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let sent = lines.find_map(|line| {
        line.expect("text").split_once("sent ").map(|(_, sent)| sent.parse::<usize>())
    });
    let sent = sent.expect("the child has sent").expect("a number");
    let mut received = Vec::new();
    let (mut stream, _) = listener.accept().expect("the child has connected");
    stream.read_to_end(&mut received).expect("an end of the stream, and no reset");
    assert!(sent > 0 && received.len() == sent, "{} of {sent} bytes", received.len());
    assert!(child.wait().expect("an end").success());
}
