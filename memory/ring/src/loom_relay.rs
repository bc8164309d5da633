//! Every interleaving of threads that take, leave and follow. A thread that is not told waits for
//! ever, which a model reports. (When the hand-off word changes, all who sleep on it go on here;
//! the kernel wakes one of them.)
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-ring --profile loom --lib loom_relay`

use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

use crate::relay::{Relay, Taken, Who};

/// A thread that waits: it has it once, sleeping on the hand-off word as long as it must.
fn wait(relay: &Relay, thread: u32) {
    let me = Who::Waits.number(thread);
    while relay.take(me, Who::Waits).is_none() {
        let Some(baton) = relay.follow() else {
            // The relay is free again, or another thread took the hand-off word meanwhile.
            thread::yield_now();
            continue;
        };
        while relay.handoff().load(Ordering::Acquire) == baton {
            thread::yield_now();
        }
        if relay.unfollow() {
            relay.pass_on(|| {});
        }
    }
    if relay.leave(me) {
        relay.pass_on(|| {});
    }
}

#[test]
fn loom_relay_who_leaves_wakes_who_follows() {
    loom::model(|| {
        let relay = Arc::new(Relay::new());
        let me = Who::Waits.number(1);
        assert_eq!(relay.take(me, Who::Waits), Some(Taken::Free));
        let follower = {
            let relay = Arc::clone(&relay);
            thread::spawn(move || wait(&relay, 2))
        };
        assert!(relay.leave(me));
        relay.pass_on(|| {});
        follower.join().unwrap();
        assert!(relay.is_free_for(Who::StandsBy) && !relay.has_followers());
    });
}

/// The thread that stands by rests while another has the relay, and is called when that one leaves,
/// whoever else is counted.
#[test]
fn loom_relay_who_stands_by_is_called() {
    loom::model(|| {
        let relay = Arc::new(Relay::new());
        let me = Who::Waits.number(1);
        assert!(relay.take(me, Who::Waits).is_some());
        let stands_by = {
            let relay = Arc::clone(&relay);
            thread::spawn(move || {
                let me = Who::StandsBy.number(2);
                while relay.take(me, Who::StandsBy).is_none() {
                    relay.rest();
                }
            })
        };
        assert!(relay.leave(me));
        relay.pass_on(|| {});
        stands_by.join().unwrap();
    });
}

/// The retired thread leaves, and takes the relay no more. Another one that wants it may have it in
/// between, and goes off without it: the thread that stands by has it in the end.
#[test]
fn loom_relay_who_has_retired_is_served() {
    let mut builder = loom::model::Builder::new();
    // All interleavings of three threads would take minutes.
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let relay = Arc::new(Relay::new());
        let me = Who::Waits.number(1);
        assert!(relay.take(me, Who::Waits).is_some());
        let other = {
            let relay = Arc::clone(&relay);
            thread::spawn(move || {
                let me = Who::Waits.number(2);
                if relay.take(me, Who::Waits).is_some() && relay.leave(me) {
                    relay.pass_on(|| {});
                }
            })
        };
        let stands_by = {
            let relay = Arc::clone(&relay);
            thread::spawn(move || {
                let me = Who::StandsBy.number(3);
                while relay.take(me, Who::StandsBy).is_none() {
                    relay.rest();
                }
            })
        };
        assert!(relay.leave(me));
        relay.pass_on(|| {});
        other.join().unwrap();
        stands_by.join().unwrap();
    });
}

/// The thread that stands by lends, then looks for followers; a follower takes the lent relay.
#[test]
fn loom_relay_who_stands_by_does_not_sleep_while_others_follow() {
    loom::model(|| {
        let relay = Arc::new(Relay::new());
        let me = Who::StandsBy.number(1);
        assert!(relay.take(me, Who::StandsBy).is_some());
        let follower = {
            let relay = Arc::clone(&relay);
            thread::spawn(move || wait(&relay, 2))
        };
        relay.lend(me);
        // Otherwise it sleeps until the end: nobody has to wake it.
        if relay.has_followers() && relay.take_back(me) {
            assert!(relay.leave(me));
            relay.pass_on(|| {});
        }
        follower.join().unwrap();
    });
}

/// Two threads want the lent relay: one gets it, and the lender knows.
#[test]
fn loom_relay_what_is_lent_is_had_by_one() {
    loom::model(|| {
        let relay = Arc::new(Relay::new());
        let me = Who::Waits.number(1);
        assert!(relay.take(me, Who::Waits).is_some());
        let touched = Arc::new(loom::cell::UnsafeCell::new(0));
        relay.lend(me);
        let asks = {
            let (relay, touched) = (Arc::clone(&relay), Arc::clone(&touched));
            thread::spawn(move || {
                let me = Who::Asks.number(2);
                let taken = relay.take(me, Who::Asks);
                if taken.is_some() {
                    // SAFETY: loom checks that nobody else is here.
                    touched.with_mut(|at| unsafe { *at += 1 });
                    assert!(relay.leave(me));
                }
                taken
            })
        };
        if relay.take_back(me) {
            // SAFETY: as above.
            touched.with_mut(|at| unsafe { *at += 1 });
            assert!(relay.leave(me));
        }
        let taken = asks.join().unwrap();
        assert!(matches!(taken, None | Some(Taken::FromSleeper | Taken::Free)));
    });
}

/// Twenty seconds of interleavings.
mod nightly {
    use super::*;

    /// A single thread takes the relay twice: each of the two follows the other.
    #[test]
    fn loom_relay_each_follower_gets_it() {
        loom::model(|| {
            let relay = Arc::new(Relay::new());
            let follower = {
                let relay = Arc::clone(&relay);
                thread::spawn(move || wait(&relay, 2))
            };
            wait(&relay, 1);
            wait(&relay, 1);
            follower.join().unwrap();
            assert!(relay.is_free_for(Who::StandsBy) && !relay.has_followers());
        });
    }
}
