//! Tests of disciplines against the pseudo-code of their RFCs, and properties of all disciplines.

mod cobalt;
mod codel;
mod fifo;
mod fq_codel;
mod item;
mod mq;
mod pie;
mod prio;
mod properties;
mod red;
mod tbf;
mod traffic;
mod transmit;
