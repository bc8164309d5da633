use std::error::Error;
use std::io::{Read, Write};
use std::thread;

use towpath::Stack;

fn main() -> Result<(), Box<dyn Error>> {
    let stack = Stack::builder().rootless().capture("packets.pcapng").start()?;
    let host = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = host.local_addr()?.port();
    let client = thread::spawn(move || -> std::io::Result<String> {
        // 10.0.2.2 is this machine's loopback interface, as the stack sees it.
        let mut connection = stack.connect(("10.0.2.2", port))?;
        let mut line = String::new();
        connection.read_to_string(&mut line)?;
        Ok(line)
    });
    host.accept()?.0.write_all(b"hello from the kernel\n")?;
    let line = client.join().expect("no panic")?;
    std::io::stdout().write_all(line.as_bytes())?;
    Ok(())
}
