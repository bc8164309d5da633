//! `towpath vhost` with a guest of QEMU: runs the commands of `docs/vhost.md` as written on the
//! page, but without KVM. Needs a kernel in /boot and QEMU, which the nightly installs.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::path::Path;
use std::time::Duration;

use towpath_tests::proxy_lab::counter;
use towpath_tests::{Output, Process, Scratch, is_inline, towpath};

const PAGE: &str = include_str!("../../docs/vhost.md");
/// Time limit for a guest that boots twice and transfers some megabytes.
const GUEST_LIMIT: Duration = Duration::from_secs(180);

/// Starts towpath and the guest, whose console is a pipe, and fetches pages in both directions.
///
/// `$1` is the directory of `towpath`. `boot` starts the guest as on the page.
const FRAME: &str = r#"
set -e
PATH=$1:$PATH
cd $2
tell() { echo "$1" >&3; }
waits_for() {
    for n in $(seq 600); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
    echo "in vain: $*" >&2; cat console >&2; return 1
}
has() { grep -q "^$1" console; }
python3 -m http.server 7981 --bind 127.0.0.1 -d $2/host >server.log 2>&1 & server=$!
trap 'kill $server $towpath $guest 2>/dev/null' EXIT
"#;

/// Splits the second block of the page after the start of towpath.
fn commands() -> (String, String, String) {
    let (_, section) = PAGE.split_once("## Try it with a small guest\n").expect("the section");
    let mut blocks = section.split("```sh\n").skip(1);
    let mut next = || {
        let block = blocks.next().expect("a block");
        block.split("\n```").next().expect("text").to_owned()
    };
    let (make, start) = (next(), next());
    let (network, guest) = start.split_once("sleep 1\n").expect("a pause between the commands");
    let network = network.replace("vhost vm.sock", "vhost vm.sock --stats=json");
    // QEMU 7.2 crashes when a vhost-user queue uses MSI-X without KVM.
    let guest = guest.replace("-enable-kvm", "-accel tcg");
    (make, network, guest.replace("-pci,netdev=net", "-pci,netdev=net,vectors=0"))
}

/// Returns what the machine lacks for a guest.
fn missing() -> Option<&'static str> {
    let has_kernel = std::fs::read_dir("/boot").is_ok_and(|mut files| {
        files.any(|file| {
            file.is_ok_and(|it| it.file_name().to_string_lossy().starts_with("vmlinuz-"))
        })
    });
    let all = [
        (has_kernel, "a kernel in /boot"),
        (Path::new("/usr/bin/qemu-system-x86_64").exists(), "qemu-system-x86_64"),
        (Path::new("/usr/bin/cpio").exists(), "cpio"),
    ];
    all.into_iter().find(|(is_there, _)| !is_there).map(|(_, what)| what)
}

/// Runs the page's commands, followed by `checks`. Returns `None` if the machine lacks something.
fn run(checks: &str) -> Option<Output> {
    if is_inline() {
        return None;
    }
    if let Some(missing) = missing() {
        eprintln!("left out: needs {missing}");
        return None;
    }
    let folder = Scratch::new();
    let place = folder.path().to_str().expect("plain").to_owned();
    std::fs::create_dir(folder.path().join("host")).expect("a folder");
    folder.write("host/page", "a page of the host\n");
    folder.big("host/big", 50_000_000);
    let (make, network, guest) = commands();
    let script = format!(
        "{FRAME}\n{make}\nhead -c 20000000 /dev/urandom > guest/www/big\n\
         (cd guest && find . | cpio --quiet -o -H newc) | gzip -1 > guest.img\n\
         mkfifo keys\n{network}\ntowpath=$!\nwaits_for test -S vm.sock\n\
         boot() {{\n{guest}\n}}\nboot <keys >console 2>qemu.log & guest=$!\nexec 3>keys\n\
         {checks}\ntell 'poweroff -f'\nwait $guest || true\nkill -TERM $towpath\nwait $towpath\n\
         echo done\n"
    );
    let towpath = towpath();
    let (bin, _) = towpath.rsplit_once('/').expect("a whole path");
    let output = Process::spawn(&["bash", "-c", &script, "sh", bin, &place]).wait(GUEST_LIMIT).ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    Some(output)
}

#[test]
fn guest_boots_reaches_the_host_and_is_reached() {
    let checks = r#"
waits_for curl -sf http://127.0.0.1:8080/
test "$(curl -sf http://127.0.0.1:8080/)" = 'a page of the guest'
tell 'ip addr show eth0 | grep -o "inet 10.0.2.15/24"; cat /etc/resolv.conf'
waits_for has 'inet 10.0.2.15/24'
waits_for has 'nameserver 10.0.2.3'
tell 'ping -c 1 -W 5 10.0.2.2 | grep -o "1 packets received"'
waits_for has '1 packets received'
tell 'wget -qO- http://10.0.2.2:7981/page'
waits_for has 'a page of the host'
tell 'wget -qO- http://10.0.2.2:7981/big | sha256sum; echo fetched'
waits_for has fetched
grep -q "$(sha256sum < host/big | cut -c -64)" console
test "$(curl -sf http://127.0.0.1:8080/big | sha256sum)" = "$(sha256sum < guest/www/big)"
"#;
    let Some(output) = run(checks) else { return };
    let count = |name| counter(&output.stderr, "vhost", name);
    assert!(count("rx_bytes") > 20_000_000 && count("tx_bytes") > 50_000_000);
    // Segments of the guest and to it pass in large pieces, and nothing is wrong with them.
    assert!(count("tx_bytes") / count("tx_frames") > 5_000, "{}", output.stderr);
    assert_eq!((count("broken_queues"), count("rx_malformed"), count("tx_finished")), (0, 0, 0));
}

#[test]
fn guest_restarts_and_a_second_one_follows() {
    let checks = r#"
waits_for curl -sf http://127.0.0.1:8080/
tell 'rmmod virtio_net; sleep 1; . /load; ip link set eth0 up'
tell 'udhcpc -q -n -i eth0 -s /lease; echo again'
waits_for has again
test "$(curl -sf http://127.0.0.1:8080/)" = 'a page of the guest'
tell 'poweroff -f'
wait $guest || true
: > console
boot <keys >console 2>qemu.log & guest=$!
exec 3>keys
waits_for curl -sf http://127.0.0.1:8080/
"#;
    let Some(output) = run(checks) else { return };
    assert_eq!(counter(&output.stderr, "vhost", "front_ends"), 2, "{}", output.stderr);
    assert_eq!(counter(&output.stderr, "vhost", "broken_queues"), 0, "{}", output.stderr);
}
