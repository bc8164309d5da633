//! Sends back what clients send, with a thread for each connection.
//!
//! `cargo run -p towpath --example echo`, then `nc 127.0.0.1 7000`.

use std::{io, thread};

use towpath::Stack;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stack = Stack::builder().rootless().publish("127.0.0.1:7000:7").start()?;
    let listener = stack.listen("0.0.0.0:7")?;
    for connection in listener.incoming() {
        let connection = connection?;
        thread::spawn(move || io::copy(&mut &connection, &mut &connection));
    }
    Ok(())
}
