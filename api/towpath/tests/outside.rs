//! A crate that is no member of the workspace uses the library by its path.

mod nightly {
    use std::fs;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};

    const MANIFEST: &str = r#"
[package]
name = "NAME"
version = "0.1.0"
edition = "2024"

[dependencies]
towpath = { path = "PATH" }

[workspace]
"#;

    const MAIN: &str = r#"
use std::io::{Read, Write};
use towpath::net::{TcpListener, TcpStream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stack = towpath::Stack::builder().loopback().start()?;
    stack.set_default();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    client.write_all(b"hello from outside")?;
    drop(client);
    let mut said = String::new();
    listener.accept()?.0.read_to_string(&mut said)?;
    println!("{said}");
    stack.shutdown()?;
    Ok(())
}
"#;

    /// A crate in a folder of its own, which is removed with the value.
    struct Crate {
        folder: PathBuf,
        target: PathBuf,
    }

    impl Crate {
        fn new(name: &str, main: &str) -> Self {
            let library = Path::new(env!("CARGO_MANIFEST_DIR"));
            // All that the library is made of is built once.
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
            let folder = target.join(format!("{name}-{}", std::process::id()));
            fs::create_dir_all(folder.join("src")).unwrap();
            let manifest =
                MANIFEST.replace("PATH", library.to_str().unwrap()).replace("NAME", name);
            fs::write(folder.join("Cargo.toml"), manifest).unwrap();
            fs::write(folder.join("src/main.rs"), main).unwrap();
            // The versions that the workspace has: others may not be on this machine.
            fs::copy(library.join("../../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
            Self { folder, target }
        }

        fn cargo(&self, command: &str) -> Command {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args([command, "--quiet", "--offline"]).current_dir(&self.folder);
            cargo.env("CARGO_TARGET_DIR", &self.target);
            cargo
        }
    }

    impl Drop for Crate {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn a_crate_outside_of_the_workspace_builds_and_runs() {
        let run = Crate::new("outside", MAIN).cargo("run").output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(String::from_utf8_lossy(&run.stdout), "hello from outside\n");
    }

    /// A running program, which is ended with the value.
    struct Served(Child);

    impl Drop for Served {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The program of docs/library.md, at a port that is free here.
    #[test]
    fn the_page_of_the_document_is_served() {
        let document = include_str!("../../../docs/library.md");
        let (_, from) = document.split_once("```rust\n").unwrap();
        let (main, _) = from.split_once("```").unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let published = format!("{free}:80");
        let page = Crate::new("page", &main.replace("127.0.0.1:8080:80", &published));
        let built = page.cargo("build").status().unwrap();
        assert!(built.success());
        let program = page.target.join("debug/page");
        let mut served = Served(Command::new(program).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(served.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut connection = TcpStream::connect(free).unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\r\n\r\nHello, 10.0.2.2:"), "{answer}");
    }
}
