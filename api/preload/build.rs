//! Arguments for the linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Name by which glibc's name service switch finds the library (`api/symbols/src/nss.rs`).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnss_towpath.so.2");
    // A call from one exported function to another ends in this library. Otherwise the dynamic
    // linker would bind it to a function of the program that has the same name. If that function
    // calls the library in turn, the two call each other without end.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
