//! Models of the relay, by which threads take turns at running the engine. Loom explores all
//! interleavings of threads that take the relay, release it and wait for it. Loom reports a thread
//! that is never woken. In the model, a change of the hand-off futex word wakes all threads that
//! wait for it; the kernel would wake only one.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-ring --profile loom --lib loom_relay`

use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

use crate::relay::{Relay, Taken, Who};

/// Takes the relay (the right to run the engine) once, as one thread. Sleeps on the hand-off word
/// while another thread has it.
fn wait(relay: &Relay, thread: u32) {
    let me = Who::Waits.number(thread);
    while relay.take(me, Who::Waits).is_none() {
        let Some(baton) = relay.follow() else {
            // The relay is free again, or the hand-off word has changed. Try again.
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

/// Models the standby thread, which sleeps while another thread has the relay (the right to run the
/// engine). The standby thread must be woken when that thread releases the relay.
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

/// Models a thread that releases the relay (the right to run the engine) for the last time. Another
/// thread may take and release it. In the end the standby thread must have it.
#[test]
fn loom_relay_who_has_retired_is_served() {
    let mut builder = loom::model::Builder::new();
    // Limit the preemptions, because exploring all interleavings of three threads would take
    // minutes.
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

/// Models the standby thread lending the relay and then checking for waiting threads, one of which
/// takes the lent relay.
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
        // If the thread does not take the relay back, it sleeps until the model ends, because no
        // thread must wake it.
        if relay.has_followers() && relay.take_back(me) {
            assert!(relay.leave(me));
            relay.pass_on(|| {});
        }
        follower.join().unwrap();
    });
}

/// Models two threads that try to take a lent relay (the right to run the engine). Only one
/// succeeds, and the lending thread can find out.
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
                    // SAFETY: loom checks that no other thread accesses the cell at the same time.
                    touched.with_mut(|at| unsafe { *at += 1 });
                    assert!(relay.leave(me));
                }
                taken
            })
        };
        if relay.take_back(me) {
            // SAFETY: loom checks that no other thread accesses the cell at the same time.
            touched.with_mut(|at| unsafe { *at += 1 });
            assert!(relay.leave(me));
        }
        let taken = asks.join().unwrap();
        assert!(matches!(taken, None | Some(Taken::FromSleeper | Taken::Free)));
    });
}

/// Models that take twenty seconds, so they run only at night.
mod nightly {
    use super::*;

    /// Models two threads that pass the relay (the right to run the engine) to each other. The
    /// first thread takes it twice.
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
