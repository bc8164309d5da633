//! The parsers from outside: what is emitted reads back, the RFCs' examples hold, no bytes panic.

mod arbitrary_bytes;
mod checksum;
mod extension_headers;
mod icmp;
mod names;
mod round_trip;
