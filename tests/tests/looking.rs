//! Programs that look at the network see the stack: netstat, ss, ip and psutil.

use towpath_tests::{Mode, Namespace, run};

/// A listener, a connection to it and a UDP socket; then a script for `sh`, with the ports as $L,
/// $C and $U.
const SOCKETS: &str = "import os,socket,subprocess,sys\n\
    l=socket.create_server(('127.0.0.1',0)); lp=l.getsockname()[1]\n\
    c=socket.create_connection(('127.0.0.1',lp)); a,_=l.accept(); cp=c.getsockname()[1]\n\
    u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('127.0.0.1',0))\n\
    ports={'L':str(lp),'C':str(cp),'U':str(u.getsockname()[1])}\n\
    sys.exit(subprocess.run(['sh','-ec',sys.argv[1]],env={**os.environ,**ports}).returncode)";

/// Output of a shell beside such sockets.
fn seen(mode: Mode, script: &str) -> String {
    let ns = Namespace::new();
    run(&ns, mode, &[], &["python3", "-c", SOCKETS, script]).ok().stdout
}

/// The columns of netstat, and of ss by netlink, which it asks for its filters, too.
#[test]
fn netstat_and_ss_show_the_sockets() {
    for &mode in Mode::all() {
        let out = seen(
            mode,
            "netstat -tuna | grep -E \":($L|$U) \" | awk '{print $1, $6}' | sort\n\
             ss -Htlna | grep -c \":$L \"\n\
             ss -Htan sport = :$L | wc -l\n\
             ss -Htan state listening sport = :$L | wc -l\n\
             ss -Htan dst 127.0.0.1:$L | wc -l\n\
             ss -Htan dst 10.99.0.0/16 | wc -l\n\
             ss -Huan sport = :$U | awk '{print $1}'\n\
             ss -Htinm sport = :$C | grep -o cubic",
        );
        let wanted = "tcp ESTABLISHED\ntcp ESTABLISHED\ntcp LISTEN\nudp \n\
                      2\n2\n1\n1\n0\nUNCONN\ncubic\n";
        assert_eq!(out, wanted, "{mode:?}");
    }
}

/// Where netlink is of no use, ss reads /proc/net, and sees the same.
#[test]
fn ss_sees_the_same_in_proc_net() {
    let out = seen(
        Mode::Rootless,
        "one() { awk '{print $1,$4,$5}' | sort; }\n\
         a=$(ss -Htan | one)\n\
         b=$(PROC_NET_TCP=/proc/net/tcp PROC_NET_TCP6=/proc/net/tcp6 ss -Htan | one)\n\
         test \"$a\" = \"$b\"; echo \"$a\" | wc -l",
    );
    assert_eq!(out, "3\n");
}

#[test]
fn ip_shows_traffic_rules_and_neighbours() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let script = "ip -s -j link show lo | grep -c stats64\nip rule | grep -c 'lookup main'\n\
             ip -6 rule | grep -c 'lookup local'\nip neigh > /dev/null\nip neigh | wc -l\n\
             netstat -rn | grep -c eth0\nnetstat -in | grep -c '^lo '";
        // Over TAP the kernel is a neighbour, whom a refused connection makes known.
        let visit = "curl -s http://10.77.0.1:9 || true";
        let script = if mode == Mode::Tap { &format!("{visit}\n{script}") } else { script };
        let out = run(&ns, mode, &[], &["sh", "-ec", script]).ok().stdout;
        let all: Vec<_> = out.lines().collect();
        assert_eq!((&all[..3], &all[5..]), (&["1", "1", "1"][..], &["1"][..]), "{mode:?}: {out}");
        let neighbours: u32 = all[3].parse().expect("a number");
        assert_eq!(neighbours > 0, mode == Mode::Tap, "{mode:?}: {out}");
        assert!(all[4].parse::<u32>().is_ok_and(|routes| routes > 0), "{mode:?}: {out}");
    }
}

/// psutil names the process, by the inodes that /proc/self/fd tells.
#[test]
fn psutil_shows_the_connections_of_its_own_process() {
    const SCRIPT: &str = "import socket,sys\n\
        sys.path.append('/usr/lib/python3/dist-packages')\n\
        import psutil\n\
        l=socket.create_server(('127.0.0.1',0)); lp=l.getsockname()[1]\n\
        c=socket.create_connection(('127.0.0.1',lp)); a,_=l.accept()\n\
        u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('127.0.0.1',0))\n\
        all=psutil.Process().connections('inet')\n\
        assert {s.fileno() for s in (l,c,a,u)}=={x.fd for x in all},all\n\
        print(sorted(x.status for x in all), sorted(psutil.net_io_counters(pernic=True)))";
    let ns = Namespace::new();
    let out = run(&ns, Mode::Rootless, &[], &["/usr/bin/python3", "-c", SCRIPT]).ok();
    let wanted = "['ESTABLISHED', 'ESTABLISHED', 'LISTEN', 'NONE'] ['eth0', 'lo']\n";
    assert_eq!(out.stdout, wanted);
}
