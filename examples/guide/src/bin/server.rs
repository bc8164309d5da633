use std::io;
use std::thread;

use towpath::Stack;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stack = Stack::builder().rootless().publish("127.0.0.1:7002:7").start()?;
    let listener = stack.listen("0.0.0.0:7")?;
    loop {
        let (connection, _) = listener.accept()?;
        thread::spawn(move || io::copy(&mut &connection, &mut &connection));
    }
}
