//! Arguments for the linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // glibc's name service switch (nsswitch.conf) finds the library by this name
    // (`api/symbols/src/nss.rs`).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnss_towpath.so.2");
    // Bind calls between exported functions to this library. Otherwise the dynamic linker may bind
    // such a call to a function of the program with the same name. If that function calls the
    // library in turn, the recursion never ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
