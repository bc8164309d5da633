//! A process that may not map as much as a stack takes. Alone in its file: the limit is for all
//! threads.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath::{Stack, StartError};

#[test]
fn a_limit_on_address_space_is_told_and_nothing_stays() {
    let before = getrlimit(Resource::As);
    // None for a stack; room for the region of the engine alone; and for that and the rest but
    // little.
    for gib in [1, 40, 80, 100] {
        let lowered = Rlimit { current: Some(gib << 30), ..before };
        setrlimit(Resource::As, lowered).expect("lower");
        let error = Stack::builder().loopback().start().expect_err("no room");
        assert!(matches!(error, StartError::AddressSpace), "{gib} GiB: {error:?}");
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::OutOfMemory);
    }
    setrlimit(Resource::As, before).expect("as before");
    drop(Stack::builder().loopback().start().expect("room"));
}
