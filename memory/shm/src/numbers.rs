//! Lists of protocol numbers.

/// Defines a module of numbers, and lists them as `ALL`. The list is generated from the
/// definitions, so code that iterates over all calls or commands, such as tests, cannot miss a new
/// one.
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
            /// All numbers, with their names.
            pub const ALL: &[(&str, u32)] = &[$((stringify!($number), $number)),*];
            /// The largest number.
            pub const LAST: u32 = ALL[ALL.len() - 1].1;
        }
    };
}
