//! A crate that is no member of the workspace uses the library by its path.

mod nightly {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

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

    /// Takes as long as all that the library is made of takes to build.
    #[test]
    fn a_crate_outside_of_the_workspace_builds_and_runs() {
        let library = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
        let folder = target.join(format!("crate-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).unwrap();
        let manifest = MANIFEST.replace("PATH", library.to_str().unwrap());
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        fs::write(folder.join("src/main.rs"), MAIN).unwrap();
        // The versions that the workspace has: others may not be on this machine.
        fs::copy(library.join("../../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        let run = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--offline"])
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(said, "hello from outside\n");
        fs::remove_dir_all(folder).unwrap();
    }
}
