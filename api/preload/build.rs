//! Linker arguments for the library that is preloaded into programs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The soname by which glibc's name service switch finds this library as a service
    // (`api/symbols/src/nss.rs`).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnss_towpath.so.2");
    // Bind calls between exported functions inside this library. Otherwise the dynamic linker would
    // bind such a call to a function of the same name in the program. If that function calls the
    // library in turn, the two would call each other without end.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
