/// Declares a structure of counters and an iterator over their names and values.
///
/// Each counter is a public `u64` field. `iter` returns names and values in the order of
/// declaration.
///
/// ```
/// towpath_pool::counters! {
///     /// Frames of a device.
///     pub struct Counters {
///         /// Frames received.
///         rx_frames,
///         /// Frames sent.
///         tx_frames,
///     }
/// }
///
/// let counters = Counters { tx_frames: 7, ..Counters::default() };
/// assert!(counters.iter().eq([("rx_frames", 0), ("tx_frames", 7)]));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$of_all:meta])*
        $visibility:vis struct $Counters:ident { $( $(#[$of_one:meta])* $name:ident, )* }
    ) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        $visibility struct $Counters { $( $(#[$of_one])* pub $name: u64, )* }

        impl $Counters {
            /// Iterates over names and values of the counters, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [ $( (stringify!($name), self.$name), )* ].into_iter()
            }
        }
    };
}
