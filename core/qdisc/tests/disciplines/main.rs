//! Disciplines against the pseudo-code of their RFCs, and by properties that hold for all of them.

mod codel;
mod fifo;
mod fq_codel;
mod item;
mod prio;
mod properties;
mod tbf;
mod traffic;
