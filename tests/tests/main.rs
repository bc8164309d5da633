//! All tests with real programs in a single binary, because linking one per file took most of the
//! build time. The gate runs some modules (`SMOKE` in `xtask/src/gate.rs`), and the nightly run all
//! of them.

mod activation;
mod at_once;
mod control;
mod death;
mod dhcp;
mod dpdk;
mod ecn;
mod errors;
mod fast_open;
mod floods;
mod hostile;
mod http;
mod idle;
mod inline;
mod kernel;
mod kernel_page;
mod languages;
mod leaving;
mod limits;
mod looking;
mod netem;
mod network;
mod oracle;
mod own_name;
mod packet;
mod ports;
mod processes;
mod proxy;
mod proxy_bad_days;
mod proxy_run;
mod realtime;
mod replay;
mod res_query;
mod resolver;
mod router;
mod router_page;
mod servers;
mod shards;
mod stream;
mod stress;
mod tcp_info;
mod urgent;
mod vhost;
mod xdp;
