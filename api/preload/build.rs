//! The soname of the library, by which glibc's name service switch finds it
//! (`api/symbols/src/nss.rs`).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnss_towpath.so.2");
}
