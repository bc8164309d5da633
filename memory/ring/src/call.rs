//! Requests of a program to the engine (the process with the network stack), and the replies. Both
//! are written to the request slot of a channel, memory that the program shares with the engine.
//!
//! ```text
//!   program: writes the request │ asked = n ──► engine: copies it, writes the reply │ answered = n
//!            sleeps on seq, unless answered = n ◄─────────────────────────── wakes the sleeper
//! ```
//!
//! A program has one request in progress at a time. A reply contains the number of its request, so
//! that a late reply is not mistaken for the reply to a later request. Requests whose reply
//! contains file descriptors use a Unix socket instead.

use std::sync::atomic::{AtomicU32, Ordering};

use towpath_shm::control::{ControlReply, Request, RequestSlot};

use crate::protocol;
use crate::region::Channel;

/// Writes a request to the engine, and returns its number for [`answer_to`]. Then call
/// [`crate::ring_engine`] to wake the engine. The caller must hold its process's request lock until
/// the reply has arrived.
pub fn ask(channel: &Channel, request: &Request) -> u32 {
    channel.write_request(request.wire());
    let asked = &channel.header().asked;
    let number = asked.load(Ordering::Relaxed).wrapping_add(1);
    asked.store(number, Ordering::Release);
    number
}

/// Returns the engine's reply to the request with this number, if it has arrived.
///
/// Does not allocate memory, because a signal handler may call it while the program is inside its
/// allocator.
pub fn answer_to(channel: &Channel, number: u32) -> Option<ControlReply> {
    (channel.request_slot().answered.load(Ordering::Acquire) == number)
        .then(|| channel.read_reply())
}

/// Returns a futex word and its expected value, for waiting until the engine replies. The word
/// changes when the engine replies or stops serving the channel. Between this call and the wait,
/// check for both ([`answer_to`], [`crate::has_ended`]).
pub fn await_answer(channel: &Channel) -> (&AtomicU32, u32) {
    let cell = channel.request_slot();
    (&cell.seq, protocol::enter(&cell.seq, &cell.asleep))
}

/// Returns the futex word and value like [`await_answer`], but without requesting a wake-up. Used
/// by a program whose own thread runs the engine and answers the request.
pub fn answer_word(channel: &Channel) -> (&AtomicU32, u32) {
    let seq = &channel.request_slot().seq;
    (seq, seq.load(Ordering::Acquire))
}

/// The engine's state of the requests of one program.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Number of the last request that the engine has read.
    taken: u32,
    /// Whether the request with the number `taken` is not answered yet.
    is_due: bool,
}

impl Calls {
    /// Returns whether there is a new request. Returns false while the previous one is not
    /// answered.
    pub fn is_asked(&self, channel: &Channel) -> bool {
        !self.is_due && channel.header().asked.load(Ordering::Acquire) != self.taken
    }

    /// Copies the program's next request. The caller must validate it.
    pub fn take(&mut self, channel: &Channel) -> Option<Box<Request>> {
        let asked = channel.header().asked.load(Ordering::Acquire);
        if self.is_due || asked == self.taken {
            return None;
        }
        self.taken = asked;
        self.is_due = true;
        Some(channel.read_request())
    }

    /// Writes the reply to the last request, unless it is already answered.
    pub fn answer(&mut self, channel: &Channel, reply: &ControlReply) {
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        channel.write_reply(reply.wire());
        channel.request_slot().answered.store(self.taken, Ordering::Release);
        wake(channel.request_slot());
    }
}

/// Wakes the program's thread that waits for a reply. Called by the engine.
pub(crate) fn wake(cell: &RequestSlot) {
    // At most one thread waits for a reply. A wake-up of any further thread would be spurious.
    const SLEEPERS_MAX: u32 = 8;
    if protocol::signal(&cell.seq, &cell.asleep) {
        towpath_shm::futex::wake(&cell.seq, SLEEPERS_MAX);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{EngineChannel, has_ended};

    fn pair() -> (Channel, EngineChannel) {
        let channel = Channel::create().unwrap();
        (channel.clone(), EngineChannel::new(channel))
    }

    fn request(a: u32, data: &[u8]) -> Request {
        let mut request = Request { call: 3, a, len: data.len() as u32, ..Request::default() };
        request.data[..data.len()].copy_from_slice(data);
        request
    }

    fn taken(engine: &mut EngineChannel) -> Box<Request> {
        engine.take_request().expect("it was made")
    }

    #[test]
    fn a_request_is_taken_once_and_answered_once() {
        let (channel, mut engine) = pair();
        assert!(!engine.is_asked() && engine.take_request().is_none());
        for n in 1..4 {
            let number = ask(&channel, &request(n, b"what"));
            assert!(engine.is_asked());
            let request = taken(&mut engine);
            assert_eq!((request.call, request.a, request.payload()), (3, n, &b"what"[..]));
            assert!(!engine.is_asked() && engine.take_request().is_none());
            assert!(answer_to(&channel, number).is_none());
            engine.answer(&ControlReply { errno: 5, b: n, ..ControlReply::default() });
            let reply = answer_to(&channel, number).expect("it is there");
            assert_eq!((reply.errno, reply.b, reply.payload()), (5, n, &b""[..]));
            engine.answer(&ControlReply::default());
            assert_eq!(answer_to(&channel, number).expect("it is there").errno, 5);
        }
    }

    /// Tests that a short request contains no bytes of the longer request before it.
    #[test]
    fn what_was_not_said_is_zero() {
        let (channel, mut engine) = pair();
        ask(&channel, &request(1, &[7; 100]));
        taken(&mut engine);
        engine.answer(&ControlReply {
            len: 100,
            data: [7; towpath_shm::control::DATA_MAX],
            ..ControlReply::default()
        });
        let number = ask(&channel, &request(1, &[8; 3]));
        assert_eq!(taken(&mut engine).data[..5], [8, 8, 8, 0, 0]);
        engine.answer(&ControlReply::default());
        assert_eq!(answer_to(&channel, number).expect("it is there").data[..2], [0, 0]);
    }

    /// Tests that a second request is not read before the first is answered, because there is
    /// memory for only one reply.
    #[test]
    fn one_that_is_asked_before_the_answer_comes_after_it() {
        let (channel, mut engine) = pair();
        let first = ask(&channel, &request(1, b""));
        taken(&mut engine);
        let second = ask(&channel, &request(2, b""));
        assert!(!engine.is_asked() && engine.take_request().is_none());
        engine.answer(&ControlReply::default());
        assert!(answer_to(&channel, first).is_some() && answer_to(&channel, second).is_none());
        assert_eq!(taken(&mut engine).a, 2);
    }

    /// Tests that every request is read exactly once if program and engine run concurrently.
    #[test]
    fn each_is_taken_once() {
        // Number of requests. Each request and its reply may take two time slices if other
        // processes use the CPUs.
        const ROUNDS: u32 = 1000;
        let start = std::time::Instant::now();
        let goes_on = move || assert!(start.elapsed().as_secs() < 50, "nothing comes any more");
        let (channel, mut engine) = pair();
        let program = std::thread::spawn(move || {
            for n in 0..ROUNDS {
                let number = ask(&channel, &request(n, b""));
                let reply = loop {
                    if let Some(reply) = answer_to(&channel, number) {
                        break reply;
                    }
                    goes_on();
                    std::thread::yield_now();
                };
                assert_eq!(reply.b, n);
            }
        });
        let mut next = 0;
        while next < ROUNDS {
            match engine.take_request() {
                Some(request) => {
                    assert_eq!(request.a, next);
                    engine.answer(&ControlReply { b: next, ..ControlReply::default() });
                    next += 1;
                }
                None => {
                    goes_on();
                    std::thread::yield_now();
                }
            }
        }
        program.join().unwrap();
        assert!(engine.take_request().is_none());
    }

    #[test]
    fn who_waits_is_woken_by_the_answer_and_by_the_end() {
        let (channel, mut engine) = pair();
        let number = ask(&channel, &request(1, b""));
        let waits = |channel: Channel| {
            std::thread::spawn(move || {
                loop {
                    let (word, expected) = await_answer(&channel);
                    if answer_to(&channel, number).is_some() || has_ended(&channel) {
                        return;
                    }
                    towpath_shm::futex::wait(word, expected, None);
                }
            })
        };
        let thread = waits(channel.clone());
        taken(&mut engine);
        engine.answer(&ControlReply::default());
        thread.join().unwrap();
        let number = ask(&channel, &request(1, b""));
        assert!(answer_to(&channel, number).is_none());
        let thread = std::thread::spawn(move || {
            loop {
                let (word, expected) = await_answer(&channel);
                if has_ended(&channel) {
                    return;
                }
                towpath_shm::futex::wait(word, expected, None);
            }
        });
        drop(engine);
        thread.join().unwrap();
    }

    #[test]
    fn numbers_go_round() {
        let (channel, mut engine) = pair();
        channel.header().asked.store(u32::MAX - 1, Ordering::Relaxed);
        for _ in 0..4 {
            let number = ask(&channel, &request(1, b""));
            taken(&mut engine);
            engine.answer(&ControlReply::default());
            assert!(answer_to(&channel, number).is_some());
        }
    }
}
