//! Arguments for the linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Set a soname. Without one, a program that is linked with the library's path would load it by
    // this path.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtowpath_c.so");
    // dlclose(3) would unmap the code that the threads of the stacks run.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
