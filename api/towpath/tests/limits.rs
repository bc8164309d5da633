//! Limits of a process that are in the way of a stack. A limit is for all threads: one test at a
//! time lowers one.

use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath::{Stack, StartError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` with a lower soft limit.
fn with<T>(resource: Resource, soft: u64, test: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(soft), ..before }).expect("lower");
    let result = test();
    setrlimit(resource, before).expect("as before");
    result
}

fn start() -> Result<Stack, StartError> {
    Stack::builder().loopback().start()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

#[test]
fn a_limit_on_address_space_is_told() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Room for the region of the engine alone, or for both maps of it but for the last GiB.
    for gib in [40, 80, 100] {
        let error = with(Resource::As, gib << 30, start).expect_err("no room");
        assert!(matches!(error, StartError::AddressSpace), "{gib} GiB: {error:?}");
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::OutOfMemory);
    }
    drop(start().expect("room"));
}

#[test]
fn a_limit_on_descriptors_is_told_and_none_stays_open() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    drop(start().expect("descriptors"));
    let before = descriptors();
    // With each turn there is another number, until there are enough.
    let mut refused = 0;
    for more in 0.. {
        // The count has the descriptor of the folder that was read.
        match with(Resource::Nofile, (before - 1 + more) as u64, start) {
            Ok(_stack) => break,
            Err(error) => {
                let sentence = error.to_string();
                assert!(sentence.contains("ulimit -n"), "{more}: {sentence}");
                refused += 1;
            }
        }
    }
    assert!(refused > 5, "a stack takes more than {refused} descriptors");
    // The engine closes some on a thread of its own.
    while descriptors() > before {
        std::thread::yield_now();
    }
}

#[cfg(feature = "tokio")]
#[test]
fn sockets_in_a_runtime_take_one_descriptor_together() {
    use towpath::tokio::{TcpListener, TcpStream, UdpSocket};

    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stack = start().expect("a stack");
        let before = descriptors();
        let listener = TcpListener::bind_on(&stack, "127.0.0.1:80").await.expect("a port");
        let with_one = descriptors();
        // Engines of earlier tests may close descriptors meanwhile.
        assert!(with_one <= before + 1, "{before}, {with_one}");
        let mut sockets = Vec::new();
        for _ in 0..200 {
            let client = TcpStream::connect_on(&stack, "127.0.0.1:80").await.expect("connected");
            let (server, _) = listener.accept().await.expect("accepted");
            let datagrams = UdpSocket::bind_on(&stack, "127.0.0.1:0").await.expect("a port");
            sockets.push((client, server, datagrams));
        }
        assert!(descriptors() <= with_one, "{with_one}, {}", descriptors());
        drop((listener, sockets));
        assert!(descriptors() <= before, "{before}, {}", descriptors());
    });
}
