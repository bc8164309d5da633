//! Linker arguments for the library that is preloaded into programs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // glibc's name service switch finds the service of this library (`api/symbols/src/nss.rs`) by
    // this soname.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnss_towpath.so.2");
    // Bind calls between exported functions inside this library. Otherwise the dynamic linker would
    // bind them to functions of the same names in the program. Such a function may call this
    // library, which would result in infinite recursion.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
