//! The machine's own name resolves to the stack: servers bind to it, and clients look it up.

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
        // The stack's address, and the name of the machine on the kernel.
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

/// Expected output of the program in a run with the names of [`NAMES`].
const GIVEN: &str = "\
gethostname: web.example web.example web.example
files: web.example web.example
environment: web.example
too little room: -1 36 b'web.'
web.example: 10.0.2.15 fd00:2::15
WEB.Example: 10.0.2.15 fd00:2::15
db: 192.0.2.7 2001:db8::7
db2: 192.0.2.7
gethostbyname: 10.0.2.15 192.0.2.7
back: web.example db db
gethostbyaddr: web.example db db
fully: db
hosts: 192.0.2.7 db db2 | 2001:db8::7 db | 10.0.2.15 web.example | fd00:2::15 web.example
the rest of hosts: True
child: web.example
";

const NAMES: [&str; 6] =
    ["--hostname", "web.example", "--add-host", "db;db2:192.0.2.7", "--add-host", "db:2001:db8::7"];

#[test]
fn names_that_a_run_was_given_are_found() {
    let (towpath, program) = (towpath(), program("given_names.py"));
    for options in [&[][..], &["--shards", "2"], &["--inline"]] {
        let mut line = vec![towpath.as_str(), "run", "-q"];
        line.extend(options);
        line.extend(NAMES);
        line.extend(["--", "python3", &program]);
        assert_eq!(output(&line), GIVEN, "{options:?}");
    }
}

/// A namespace has the same names; the kernel resolves them there.
#[test]
fn a_namespace_has_the_same_names() {
    let (towpath, program) = (towpath(), program("given_names.py"));
    let mut line = vec![towpath.as_str(), "proxy", "run", "-q"];
    line.extend(NAMES);
    line.extend(["--", "python3", &program]);
    // If the machine has no /etc/hostname, the namespace has none either.
    let has_file = std::path::Path::new("/etc/hostname").exists();
    let without = |text: &str| {
        let lines = text.lines().filter(|line| has_file || !line.starts_with("files:"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(without(&output(&line)), without(GIVEN));
}

/// `host-gateway` resolves to the addresses of this host, in a run and in a namespace.
#[test]
fn host_gateway_is_this_host() {
    let script = "import socket; server=socket.create_connection(('me',int(PORT)),9); \
                  print(*sorted({each[4][0] for each in socket.getaddrinfo('me',1)}))";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let script = script.replace("PORT", &port.to_string());
    let towpath = towpath();
    for command in [&["run"][..], &["proxy", "run"]] {
        let mut line = vec![towpath.as_str()];
        line.extend(command);
        line.extend(["-q", "--add-host", "me;too:host-gateway", "--", "python3", "-c", &script]);
        assert_eq!(output(&line), "10.0.2.2 fd00:2::2\n", "{command:?}");
    }
}

/// More hosts than fit into one answer of the engine.
#[test]
fn many_hosts_are_found() {
    let hosts: Vec<_> = (0..200).map(|n| format!("host-{n}:192.0.2.{n}")).collect();
    let towpath = towpath();
    let mut line = vec![towpath.as_str(), "run", "-q"];
    line.extend(hosts.iter().flat_map(|host| ["--add-host", host]));
    let script = "import socket; print(socket.gethostbyname('host-199'), \
                  sum('host-' in line for line in open('/etc/hosts')))";
    line.extend(["--", "python3", "-c", script]);
    assert_eq!(output(&line), "192.0.2.199 200\n");
}

#[test]
fn the_kernel_says_the_same_where_it_knows_its_own_name() {
    let program = program("own_name.py");
    let out = Process::spawn(&["python3", &program]).wait(PATIENCE);
    // The machine's /etc/hosts may lack its name, and its kernel may lack IPv6.
    let v4 = |text: &str| {
        let lines =
            text.lines().filter(|line| !line.contains("AF_UNSPEC") && !line.contains("INET6"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    if out.success() {
        assert_eq!(v4(&out.stdout), v4(WANTED), "{}", out.stderr);
    }
}
