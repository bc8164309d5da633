//! With the feature `dpdk`, compiles the C files in `shim/`, which wrap DPDK's inline functions,
//! and links libdpdk.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=shim");
    #[cfg(feature = "dpdk")]
    compile();
}

#[cfg(feature = "dpdk")]
fn compile() {
    let found = pkg_config::Config::new().range_version("22.11".."23").probe("libdpdk");
    let library = found.unwrap_or_else(|error| {
        panic!(
            "the feature dpdk needs libdpdk 22.11 (`sudo apt-get install libdpdk-dev` on Debian \
             12): {error}"
        )
    });
    let mut build = cc::Build::new();
    build.file("shim/shim.c").includes(&library.include_paths).opt_level(3).std("gnu11");
    // Compile with the settings of the installed DPDK library, because they affect the layout of
    // structures in its inline functions.
    build.flag("-include").flag("rte_config.h").flag("-march=corei7");
    build.warnings_into_errors(true).flag("-Wno-unused-parameter").compile("towpath_dpdk_shim");
}
