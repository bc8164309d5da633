//! Numbers of the contract that can be listed.

/// Defines a module of numbers and, as `ALL`, the list of them. The list is made of the definitions
/// themselves. So code that goes through all calls or commands, as tests do, cannot miss one that
/// is added later.
macro_rules! numbered {
    (
        $(#[$about:meta])*
        pub mod $name:ident {
            $($(#[$what:meta])* pub const $number:ident: u32 = $value:expr;)*
        }
    ) => {
        $(#[$about])*
        pub mod $name {
            $($(#[$what])* pub const $number: u32 = $value;)*
            /// All of these, with their names.
            pub const ALL: &[(&str, u32)] = &[$((stringify!($number), $number)),*];
            /// The largest of these.
            pub const LAST: u32 = ALL[ALL.len() - 1].1;
        }
    };
}
