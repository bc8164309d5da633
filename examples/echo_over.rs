//! Sends back what clients send, over a link that the command line chooses:
//!
//! ```text
//! echo_over rootless 127.0.0.1:7900 7    port 7 of the stack at an address of this host
//! echo_over tap tw0 7                    port 7 of 10.77.0.2 behind the TAP device tw0
//! ```

use std::io::{Read, Write};
use std::{error, thread};

use towpath::Stack;
use towpath::net::TcpStream;

/// Bytes of the stack of a thread: a thousand connections have a thousand threads.
const STACK: usize = 128 * 1024;

fn main() -> Result<(), Box<dyn error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (stack, port) = match words[..] {
        ["rootless", at, port] => {
            (Stack::builder().rootless().publish(format!("{at}:{port}")).start()?, port)
        }
        ["tap", name, port] => (Stack::builder().tap(name).address("10.77.0.2/24").start()?, port),
        _ => return Err("usage: echo_over rootless ADDRESS:PORT PORT, or tap NAME PORT".into()),
    };
    for connection in stack.listen(format!("0.0.0.0:{port}"))?.incoming() {
        let connection = connection?;
        connection.set_nodelay(true)?;
        thread::Builder::new().stack_size(STACK).spawn(move || echo(connection))?;
    }
    Ok(())
}

fn echo(mut connection: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = connection.read(&mut bytes) {
        if connection.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}
