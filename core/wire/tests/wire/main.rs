//! Tests of the parsers' public interface: round trips, examples of RFCs, and arbitrary bytes.

mod arbitrary_bytes;
mod checksum;
mod extension_headers;
mod icmp;
mod names;
mod round_trip;
