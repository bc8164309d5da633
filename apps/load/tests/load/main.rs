//! Tests of the load tester against real servers over the kernel's loopback.

mod failures;
mod serving;
mod shapes;
