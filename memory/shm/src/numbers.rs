//! A macro that defines modules of message numbers.

/// Defines a module of numbered constants, and a list `ALL` of them. Code that iterates over all
/// constants, such as tests, uses the list.
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
            /// All constants of this module, as pairs of name and value.
            pub const ALL: &[(&str, u32)] = &[$((stringify!($number), $number)),*];
            /// The largest constant of this module.
            pub const LAST: u32 = ALL[ALL.len() - 1].1;
        }
    };
}
