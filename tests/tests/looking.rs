//! Programs that inspect the network see the stack: netstat, ss, ip and psutil.

use towpath_tests::{Mode, Namespace, Scratch, run};

/// Creates a listener, a connection to it and a UDP socket. Then runs a script in `sh`, with the
/// ports as $L, $C and $U.
const SOCKETS: &str = "import os,socket,subprocess,sys\n\
    l=socket.create_server(('127.0.0.1',0)); lp=l.getsockname()[1]\n\
    c=socket.create_connection(('127.0.0.1',lp)); a,_=l.accept(); cp=c.getsockname()[1]\n\
    u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('127.0.0.1',0))\n\
    ports={'L':str(lp),'C':str(cp),'U':str(u.getsockname()[1])}\n\
    sys.exit(subprocess.run(['sh','-ec',sys.argv[1]],env={**os.environ,**ports}).returncode)";

/// Returns the output of a script with these sockets open.
fn seen(mode: Mode, script: &str) -> String {
    let ns = Namespace::new();
    run(&ns, mode, &[], &["python3", "-c", SOCKETS, script]).ok().stdout
}

/// netstat and ss print their columns. ss uses netlink, also for its filters.
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

/// If netlink does not work, ss falls back to /proc/net, with the same result.
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

/// Sockets of another process of the run have that process as their owner.
#[test]
fn ss_lsof_and_psutil_name_the_process_of_a_socket() {
    const PSUTIL: &str = "import os,sys; sys.path.append('/usr/lib/python3/dist-packages')\n\
        import psutil; port=int(os.environ['L'])\n\
        all=[x for x in psutil.net_connections('inet') if x.laddr.port==port]\n\
        print(sorted((x.status,x.pid==os.getppid() or x.pid) for x in all))";
    let script = "owner() { grep -o '\"python3\",pid=[0-9]*,fd=[0-9]*' | tr -d '\"' | sort; }\n\
         ss -Htnlp sport = :$L | owner > listener\nss -Htnp sport = :$C | owner > client\n\
         ss -Hunp -a sport = :$U | owner > udp\ncat listener client udp | sed 's/pid=[0-9]*,//'\n\
         lsof -nP -iTCP:$L -sTCP:LISTEN | awk 'NR==2 {print $1,$4,$10}'\n\
         lsof -nP -iUDP:$U -Fn | grep -c \"127.0.0.1:$U\"\n\
         netstat -tlnp | grep -c \":$L .*/python3\"\n\
         exec /usr/bin/python3 -c \"$PSUTIL\"";
    let scratch = Scratch::new();
    let script = format!("cd {}\nPSUTIL=\"{PSUTIL}\"\n{script}", scratch.path().display());
    let out = seen(Mode::Rootless, &script);
    let wanted = "python3,fd=3\npython3,fd=4\npython3,fd=6\n\
                  python3 3u (LISTEN)\n1\n1\n\
                  [('ESTABLISHED', True), ('LISTEN', True)]\n";
    assert_eq!(out, wanted);
}

#[test]
fn ip_shows_traffic_rules_and_neighbours() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let script = "ip -s -j link show lo | grep -c stats64\nip rule | grep -c 'lookup main'\n\
             ip -6 rule | grep -c 'lookup local'\nip neigh > /dev/null\nip neigh | wc -l\n\
             netstat -rn | grep -c eth0\nnetstat -in | grep -c '^lo '";
        // Over TAP the kernel is a neighbour; a refused connection creates its entry.
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

/// Compared with a kernel that has the same addresses: one neighbour, one route, and one interface.
#[test]
fn ip_shows_one_neighbour_and_one_route() {
    const LOOK: &str = "ip neigh get 10.77.0.1 dev eth0 | cut -d' ' -f1-4\n\
        ip neigh get 10.77.0.9 dev eth0 2> /dev/null || echo none\n\
        ip neigh get 10.77.0.1 dev lo 2> /dev/null || echo none\n\
        ip route get 10.77.0.1 | sed 's/ uid [0-9]*//'\n\
        ip route get 127.0.0.1 | sed 's/ uid [0-9]*//'\n\
        ip -4 addr show dev lo | grep -c inet\n\
        ip -4 -o addr show dev eth0 | awk '{print $2, $4}'";
    if !Mode::all().contains(&Mode::Tap) {
        return;
    }
    let ns = Namespace::new();
    // A refused connection creates the neighbour entry.
    let visit = "curl -s http://10.77.0.1:9 || true";
    let script = format!("{visit}\n{LOOK}");
    let ours = run(&ns, Mode::Tap, &[], &["sh", "-ec", &script]).ok().stdout;
    let kernel = Namespace::new();
    let set_up = "ip tuntap add eth0 mode tap\nip addr add 10.77.0.2/24 dev eth0\n\
        ip link set eth0 up\nip neigh add 10.77.0.1 lladdr 02:00:00:00:00:01 dev eth0";
    let theirs = kernel.run(&["sh", "-ec", &format!("{set_up}\n{LOOK}")]).ok().stdout;
    assert!(theirs.contains("10.77.0.1 dev eth0 lladdr"), "{theirs}");
    assert!(theirs.contains("    cache") && theirs.contains("local 127.0.0.1"), "{theirs}");
    assert_eq!(ours, theirs);
}

/// psutil finds the process by the inodes in /proc/self/fd.
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
