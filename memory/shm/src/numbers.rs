//! A macro that defines lists of message numbers.

/// Defines a module of numbered constants, and a list of them called `ALL`. Code that iterates over
/// all numbers, such as tests, uses the list and cannot miss a new one.
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
            /// All constants of this module, as pairs of name and number.
            pub const ALL: &[(&str, u32)] = &[$((stringify!($number), $number)),*];
            /// The largest number of this module.
            pub const LAST: u32 = ALL[ALL.len() - 1].1;
        }
    };
}
