//! Two hosts in one process, as a test would have them: a server on one, a client on the other.
//!
//! `cargo run -p towpath --example two_stacks`

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

use towpath::Stack;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (server, client) = Stack::pair()?;
    writeln!(io::stdout(), "{}", echo(&server, &client)?)?;
    Ok(())
}

/// Has one host echo what the other says, and tells what came back.
pub fn echo(server: &Stack, client: &Stack) -> io::Result<String> {
    let listener = server.listen("0.0.0.0:80")?;
    let echo = thread::spawn(move || -> io::Result<u64> {
        let (connection, _) = listener.accept()?;
        io::copy(&mut &connection, &mut &connection)
    });
    let mut connection = client.connect((server.addresses()[0], 80))?;
    let (here, there) = (connection.local_addr()?.ip(), connection.peer_addr()?);
    connection.write_all(b"from host to host")?;
    connection.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let echoed = echo.join().expect("no panic")?;
    Ok(format!("{here} -> {there}: {answer} ({echoed} bytes)"))
}
