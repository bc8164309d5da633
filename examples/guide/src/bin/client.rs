use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use towpath::Stack;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (server, client) = Stack::builder().netem("delay 20ms").pair()?;
    let mut out = io::stdout();

    let error = client.connect("10.0.0.1:7").expect_err("nothing listens");
    writeln!(out, "before listen: {error}")?;

    let listener = server.listen("0.0.0.0:7")?;
    let mut connection = client.connect("10.0.0.1:7")?;
    connection.set_read_timeout(Some(Duration::from_millis(100)))?;
    let error = connection.read(&mut [0; 100]).expect_err("nothing was sent");
    writeln!(out, "without bytes: {error}")?;

    let (accepted, _) = listener.accept()?;
    (&accepted).write_all(b"good bye\n")?;
    accepted.shutdown(Shutdown::Write)?;
    connection.set_read_timeout(None)?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    write!(out, "with bytes: {text}")?;

    server.shutdown()?;
    let error = listener.accept().expect_err("the stack has ended");
    writeln!(out, "after shutdown: {:?}", error.kind())?;
    Ok(())
}
