//! All tests with real programs, in one binary: linking one for each file took most of its build.
//! The gate runs some of the modules (`SMOKE` in `xtask/src/gate.rs`), and the nightly runs all.

mod activation;
mod at_once;
mod control;
mod death;
mod dpdk;
mod errors;
mod fast_open;
mod hostile;
mod http;
mod idle;
mod inline;
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
mod replay;
mod res_query;
mod resolver;
mod router;
mod router_page;
mod servers;
mod shards;
mod stress;
mod urgent;
mod xdp;
