//! A crate that is no member of the workspace uses the library by its path.

mod nightly {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    const MANIFEST: &str = r#"
[package]
name = "outside"
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
            let manifest = MANIFEST.replace("PATH", library.to_str().unwrap());
            fs::write(folder.join("Cargo.toml"), manifest).unwrap();
            fs::write(folder.join("src/main.rs"), main).unwrap();
            // The versions that the workspace has: others may not be on this machine.
            fs::copy(library.join("../../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
            Self { folder, target }
        }

        /// `cargo run`, with the program's own standard output.
        fn run(&self) -> Command {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--offline"]).current_dir(&self.folder);
            cargo.env("CARGO_TARGET_DIR", &self.target).stdout(Stdio::piped());
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
        let run = Crate::new("outside", MAIN).run().output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(String::from_utf8_lossy(&run.stdout), "hello from outside\n");
    }
}
