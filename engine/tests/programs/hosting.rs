//! An engine that a host program turns on a thread that also polls other descriptors.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_engine::{Engine, EngineConfig, Next};

use crate::program::{Program, counter, wait_for_rest};

#[test]
fn a_thread_waits_for_an_engine_and_for_descriptors_of_its_own() {
    let (tell, told) = mpsc::channel();
    let (mut own, mut others) = std::io::pipe().unwrap();
    let host = thread::spawn(move || {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).unwrap();
        tell.send(engine.remote()).unwrap();
        let _life = engine.live();
        let mut bytes = Vec::new();
        loop {
            match engine.turn() {
                Next::Turn => {}
                Next::Sleep(timeout) if engine.begin_sleep() => {
                    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap());
                    let mut descriptors =
                        [PollFd::new(&engine, PollFlags::IN), PollFd::new(&own, PollFlags::IN)];
                    poll(&mut descriptors, timeout.as_ref()).unwrap();
                    let is_own = descriptors[1].revents().contains(PollFlags::IN);
                    engine.end_sleep();
                    if is_own {
                        let mut byte = [0];
                        own.read_exact(&mut byte).unwrap();
                        bytes.extend(byte);
                    }
                }
                Next::Sleep(_) => {}
                Next::End => return (engine.finish(), bytes),
            }
        }
    });
    let remote = told.recv().unwrap();
    let program = Program::hello(remote.attach().unwrap(), &[]);
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let server = program.accept(listener);
    for n in 0..20 {
        others.write_all(&[n]).unwrap();
        program.send(client, &[n; 100]);
        assert_eq!(program.recv(server, 100), [n; 100]);
    }
    // Each query for the counters takes a turn, too.
    wait_for_rest(&remote, Duration::from_millis(20), 20);
    remote.stop();
    let (report, bytes) = host.join().unwrap();
    assert_eq!(bytes, (0..20).collect::<Vec<u8>>());
    assert!(counter(&report.counters, "sleeps") > 0);
    assert!(remote.counters().is_err());
}
