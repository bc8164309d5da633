//! The machine's own name leads to the stack: servers bind to it, and clients look it up.

use towpath_tests::{PATIENCE, Process, program, towpath};

const WANTED: &str = "\
gethostbyname: True
getaddrinfo: AF_UNSPEC True True False 0
getaddrinfo: AF_INET True True False 0
getaddrinfo: AF_INET6 True True False 0
getaddrinfo: AF_UNSPEC True True False 0
getaddrinfo: AF_INET True True False 0
getaddrinfo: AF_INET6 True True False 0
struct hostent: True 4 True
getnameinfo: True 80
numbers only: True
";

fn output(line: &[&str]) -> String {
    Process::spawn(line).wait(PATIENCE).ok().stdout
}

#[test]
fn a_program_is_where_its_name_says() {
    let (towpath, program) = (towpath(), program("own_name.py"));
    for options in [&[][..], &["--shards", "2"], &["--inline"]] {
        let mut line = vec![towpath.as_str(), "run", "-q"];
        line.extend(options);
        line.extend(["--", "python3", &program, "detail"]);
        let said = output(&line);
        let (facts, detail) = said.split_at(said.len().min(WANTED.len()));
        assert_eq!(facts, WANTED, "{options:?}");
        // The stack's address, and the name at which the kernel has this machine.
        let words: Vec<_> = detail.split_whitespace().collect();
        let [name, host, named, of_hostent] = words[..] else { panic!("{detail}") };
        assert_eq!((host, named, of_hostent), ("10.0.2.15", name, name), "{options:?}");
    }
}

#[test]
fn it_has_the_addresses_that_the_run_was_given() {
    let script = "import socket; print(*dict.fromkeys(each[4][0] for each in \
                  socket.getaddrinfo(socket.gethostname().upper(), 1)))";
    let address = ["--address", "192.0.2.9/24", "--address", "2001:db8::9/64"];
    let towpath = towpath();
    let mut line = vec![towpath.as_str(), "run", "-q"];
    line.extend(address);
    line.extend(["--", "python3", "-c", script]);
    assert_eq!(output(&line), "192.0.2.9 2001:db8::9\n");
}

#[test]
fn the_kernel_says_the_same_where_it_knows_its_own_name() {
    let program = program("own_name.py");
    let out = Process::spawn(&["python3", &program]).wait(PATIENCE);
    // A machine's files need not have its name, and its kernel need not have IPv6.
    let v4 = |text: &str| {
        let lines =
            text.lines().filter(|line| !line.contains("AF_UNSPEC") && !line.contains("INET6"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    if out.success() {
        assert_eq!(v4(&out.stdout), v4(WANTED), "{}", out.stderr);
    }
}
