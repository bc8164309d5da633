//! Linker arguments for the library that is preloaded into programs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // glibc's name service switch finds the service of this library (`api/symbols/src/nss.rs`) by
    // this soname.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnss_towpath.so.2");
    // Bind calls between exported functions inside this library. Otherwise the dynamic linker would
    // bind them to functions of the same names in the program. If a function of the program calls
    // this library in turn, the recursion would be infinite.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
