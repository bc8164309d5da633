//! Defaults of a host, by their effect on the packets of a handshake.

use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// Returns the options of the SYN and of the SYN-ACK.
fn handshake(client: &str, server: &str) -> [Options; 2] {
    let config = |text: &str| {
        let mut config = Config::default();
        text.parse::<TcpDefaults>().expect(text).apply(&mut config);
        config
    };
    let mut pair = Pair::new(config(client), config(server));
    pair.connect(A);
    pair.run_for(ms(100));
    pair.write(A, 100_000);
    pair.write(B, 100_000);
    pair.run_for(ms(2_000));
    pair.assert_received(A, 100_000);
    pair.assert_received(B, 100_000);
    let syns = pair.log.iter().filter(|packet| packet.has(Flags::SYN));
    let options = syns.map(|packet| packet.segment.options).collect::<Vec<_>>();
    options.try_into().expect("a SYN and a SYN-ACK")
}

#[test]
fn disabled_options_are_neither_offered_nor_accepted() {
    type Has = fn(&Options) -> bool;
    let cases: [(&str, Has); 3] = [
        ("timestamps=off", |options| options.timestamps.is_some()),
        ("sack=off", |options| options.sack_permitted),
        ("window-scaling=off", |options| options.window_scale.is_some()),
    ];
    for (off, has) in cases {
        assert_eq!(handshake("sack=on", "sack=on").map(|options| has(&options)), [true, true]);
        assert_eq!(handshake(off, "sack=on").map(|options| has(&options)), [false, false], "{off}");
        assert_eq!(handshake("sack=on", off).map(|options| has(&options)), [true, false], "{off}");
    }
}

#[test]
fn window_scale_fits_the_maximum_buffer() {
    for (bytes, scale) in [(4096, 0), (65_535, 0), (65_536, 1), (4 << 20, 7), (64 << 20, 11)] {
        let [syn, _] = handshake(&format!("rmem-max={bytes}"), "sack=on");
        assert_eq!(syn.window_scale, Some(scale), "{bytes}");
    }
}
