//! Tests of the tracker: packets in, and the flows and translations that follow.

mod limits;
mod network;
mod tcp;
mod translation;
