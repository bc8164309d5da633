//! Directories of the library and the socket, under attack by other users of the machine.
//!
//! Each test is a shell script in its own mount namespace, with an empty /tmp, /run and /var/lib.
//! Processes of users 1000 and 1001 therefore leave no trace. The script's PID namespace ends all
//! processes that it started. Skipped without root.

#![allow(clippy::print_stderr)] // For readers of the output of the tests.

use std::process::Command;

use towpath_tests::EMPTY_FOLDERS;

/// Beginning of all scripts in this file.
const PRELUDE: &str = r#"
    library='echo $LD_PRELOAD; grep -q libtowpath /proc/self/maps && echo loaded'
    until_true() { until "$@"; do sleep 0.05; done; }
"#;

/// Returns the script's standard output and standard error. None: the test is skipped.
fn script(text: &str) -> Option<(String, String)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: needs root, to play other users");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args([
        "-m",
        "-pf",
        "--kill-child",
        "--mount-proc",
        "bash",
        "-c",
        &format!("{EMPTY_FOLDERS}{PRELUDE}\n{text}"),
    ]);
    command.arg(env!("CARGO_BIN_EXE_towpath"));
    let output = command.output().expect("unshare");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}\nstdout: {stdout}\nstderr: {stderr}", output.status);
    Some((stdout, stderr))
}

#[test]
fn nobody_else_can_hold_up_a_run() {
    let held = script(
        r#"
        for uid in 0 1000; do
            L=$(as $uid $T run -q -- sh -c 'echo $LD_PRELOAD')
            D=$(dirname $L)
            # Every file that a stranger may open, in either way, gets an exclusive lock.
            for f in $(find $D -mindepth 1); do
                as 1001 flock -x $f sleep 60 2>/dev/null &
            done
            # Until each of them waits or has its lock. In less time the test tries less.
            sleep 0.5
            setpriv --reuid=$uid --regid=$uid --clear-groups $T run -q -- sh -c 'echo ran'
        done
        "#,
    );
    let Some((stdout, stderr)) = held else { return };
    assert_eq!(stdout, "ran\nran\n", "{stderr}");
}

#[test]
fn a_name_that_somebody_else_took_is_done_without() {
    let taken = script(
        r#"
        mkdir -m 777 /tmp/towpath-1000 && chown 1001 /tmp/towpath-1000
        # Root's names cannot be taken by others, only be useless.
        as 1001 mkdir /tmp/towpath-0
        mount -t tmpfs -o noexec,mode=755 none /run
        mount -t tmpfs -o ro,mode=755 none /var/lib
        for uid in 1000 0; do
            as $uid $T run -- sh -c "$library; ls -ld \$(dirname \$LD_PRELOAD)"
            # The next run finds the folder that the first one made.
            as $uid $T run -q -- sh -c 'echo $LD_PRELOAD'
        done
        ls /tmp/towpath-1000 /tmp/towpath-0 | grep -v : | sort -u
        "#,
    );
    let Some((stdout, stderr)) = taken else { return };
    let lines: Vec<_> = stdout.lines().collect();
    for (uid, lines) in [("1000", &lines[..4]), ("0", &lines[4..8])] {
        let fresh = format!("/tmp/towpath-{uid}-");
        assert!(lines[0].starts_with(&fresh), "{stdout}");
        assert_eq!(lines[1], "loaded", "{stdout}");
        assert!(lines[2].starts_with("drwx--x--x"), "{stdout}");
        assert_eq!(lines[3], lines[0], "{stdout}");
        let reason = format!("/tmp/towpath-{uid} belongs to user 1001");
        assert_eq!(stderr.matches(&reason).count(), 1, "{stderr}");
    }
    assert_eq!(lines[8..], [""], "nothing was put into the strangers' folders: {stdout}");
}

#[test]
fn an_ancestor_that_others_control_is_not_used() {
    let moved = script(
        r#"
        mkdir -m 700 /tmp/u1000 && chown 1000:1000 /tmp/u1000
        mkdir -m 777 /tmp/open && chown 1001:1001 /tmp/open
        mkdir -p -m 755 /tmp/u1001/real && chown -R 1001:1001 /tmp/u1001
        as 1000 ln -s /tmp/u1001/real /tmp/theirs
        as 1001 ln -s /tmp/u1001/real /tmp/mine
        as 1001 ln -s ../tmp/u1001/./real/.. /tmp/mine2
        # su and sudo -E keep the variable, and its user takes root's name in /tmp.
        as 1000 mkdir /tmp/towpath-0
        XDG_RUNTIME_DIR=/tmp/u1000 $T run -- sh -c "$library"
        mkdir -m 755 /tmp/u1000b && chown 1000:1000 /tmp/u1000b
        mkdir -m 700 /tmp/u1000b/of1001 && chown 1001:1001 /tmp/u1000b/of1001
        for dir in /tmp/u1000b/of1001 /tmp/open /tmp/theirs/x /tmp/theirs /tmp/none /etc/passwd /tmp/mine /tmp/mine2; do
            XDG_RUNTIME_DIR=$dir as 1001 $T run -- sh -c 'echo $LD_PRELOAD'
        done
        [ ! -e /tmp/u1000/towpath ] && [ ! -e /tmp/open/towpath ] && echo untouched
        "#,
    );
    let Some((stdout, stderr)) = moved else { return };
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines[0].starts_with("/run/towpath/libtowpath-"), "{stdout}");
    assert_eq!(lines[1], "loaded", "{stdout}");
    for line in &lines[2..8] {
        assert!(line.starts_with("/tmp/towpath-1001/"), "{stdout}");
    }
    // The user's own symbolic link is followed, and programs get the resolved path.
    assert!(lines[8].starts_with("/tmp/u1001/real/towpath/"), "{stdout}");
    assert!(lines[9].starts_with("/tmp/u1001/towpath/"), "{stdout}");
    assert_eq!(lines[10], "untouched");
    for reason in [
        "XDG_RUNTIME_DIR is not used: /tmp/u1000b belongs to user 1000",
        "XDG_RUNTIME_DIR is not used: /tmp/open can be written to by others",
        "XDG_RUNTIME_DIR is not used: the link /tmp/theirs belongs to user 1000",
        "XDG_RUNTIME_DIR is not used: /tmp/none: No such file",
        "XDG_RUNTIME_DIR is not used: /etc/passwd is not a folder",
    ] {
        assert!(stderr.contains(reason), "{reason}: {stderr}");
    }
    assert_eq!(stderr.lines().count(), 6, "a line per run that has something to tell: {stderr}");
}

#[test]
fn a_runtime_folder_that_will_not_do_is_named_with_the_reason() {
    let unfit = script(
        r#"
        for kind in noexec ro size=4k; do
            D=/tmp/$kind
            mkdir $D
            mount -t tmpfs -o mode=700,uid=1000,gid=1000,$kind none $D
            [ $kind != size=4k ] || as 1000 dd if=/dev/zero of=$D/fill bs=4k count=1 status=none
            XDG_RUNTIME_DIR=$D as 1000 $T run -- sh -c "$library"
            XDG_RUNTIME_DIR=$D as 1000 $T run -q -- true
        done
        ls -A /tmp/size=4k/towpath
        "#,
    );
    let Some((stdout, stderr)) = unfit else { return };
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 6, "nothing half-written stays: {stdout}");
    for pair in lines.chunks(2) {
        assert!(pair[0].starts_with("/tmp/towpath-1000/"), "{stdout}");
        assert_eq!(pair[1], "loaded", "{stdout}");
    }
    let reasons: Vec<_> = stderr.lines().collect();
    assert_eq!(reasons.len(), 3, "{stderr}");
    for (line, wanted) in reasons.iter().zip(["noexec", "Read-only", "No space"]) {
        assert!(line.starts_with("towpath: XDG_RUNTIME_DIR is not used: /tmp/"), "{line}");
        assert!(line.contains(wanted), "{wanted}: {line}");
        assert!(line.contains("/tmp/towpath-1000"), "{line}");
    }
}

#[test]
fn children_of_another_user_find_the_library_whatever_the_umask_is() {
    let loaded = script(
        r#"
        umask 077
        $T run -q -- setpriv --reuid=1000 --regid=1000 --clear-groups sh -c "$library"
        umask 0777
        rm -r /run/towpath
        $T run -q -- setpriv --reuid=1000 --regid=1000 --clear-groups sh -c "$library"
        find /run/towpath -printf '%m %f\n' | sort
        "#,
    );
    let Some((stdout, stderr)) = loaded else { return };
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!((lines[1], lines[3]), ("loaded", "loaded"), "{stdout} {stderr}");
    assert_eq!(lines[0], lines[2]);
    let modes: Vec<_> = lines[4..].iter().map(|line| line.split_once(' ').expect("two")).collect();
    assert!(modes.contains(&("711", "towpath")), "{stdout}");
    for (mode, name) in modes {
        let wanted = match name {
            "towpath" => "711",
            name if name.ends_with(".so") => "644",
            _ => "600",
        };
        assert_eq!(mode, wanted, "{name}: {stdout}");
    }
}

#[test]
fn runs_with_the_same_process_id_do_not_disturb_each_other() {
    let both = script(
        r#"
        start() { unshare -pf --mount-proc "$T" run -q -- sh -c "touch $1; exec sleep 60" & }
        start /tmp/a; A=$!; start /tmp/b; B=$!
        until_true test -e /tmp/a -a -e /tmp/b
        sockets() { find /run /tmp -name '*.sock' | wc -l; }
        echo $(sockets)
        kill -9 $(pgrep -P $A)
        wait $A || true
        # One of the two was killed and left its socket; who looks removes that one alone.
        $T ss -a 1 | wc -l
        echo $(sockets)
        kill -9 $(pgrep -P $B)
        wait $B || true
        $T ss -a
        find /run /tmp -name '1-*'
        "#,
    );
    let Some((stdout, stderr)) = both else { return };
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[..3], ["2", "1", "1"], "{stdout} {stderr}");
    assert!(lines[3].starts_with("Netid"), "{stdout} {stderr}");
    assert_eq!(lines.len(), 4, "{stdout} {stderr}");
}

/// Serves an answer at `<folder>/<name>.sock` until it is killed.
const SERVE: &str = r#"
import socket, sys, time
path, kind = sys.argv[1:]
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen(5)
kept = []
while True:
    c, _ = s.accept()
    try:
        if kind == 'mark':
            open('/tmp/asked', 'w').close()
        elif kind == 'nonsense':
            c.sendall(b'\xff\x00{"')
        elif kind == 'endless':
            while True:
                c.sendall(b' ' * 65536)
        elif kind == 'drip':
            while True:
                c.sendall(b' ')
                time.sleep(.5)
        elif kind == 'silent':
            kept.append(c)
            continue
        elif kind == 'escapes':
            c.sendall(b'{"pid":9005,"program":["\\u009b2J\\u001b[2J"],"sockets":[{"proto":"tcp",'
                      b'"state":"ESTAB\\u001b]0;x\\u0007","recv_q":0,"send_q":0,"local":null,"remote":null,'
                      b'"cwnd":0,"rtt_us":0,"congestion":"\\u009b2J","holders":[],"recv_buffer":0,'
                      b'"send_buffer":0,"v6_only":false,"device":"\\u009b2J","slot":1}]}')
    except OSError:
        pass
    c.close()
"#;

#[test]
fn what_strangers_answer_is_not_believed() {
    let asked = script(&format!(
        r#"
        cat > /tmp/serve.py <<'END'
{SERVE}
END
        serve() {{ as $1 python3 /tmp/serve.py "$2" $3 & until_true test -S "$2"; }}
        # 1001 made the folder of 1000 in advance, and waits for questions.
        as 1001 mkdir /tmp/towpath-1000
        serve 1001 /tmp/towpath-1000/77.sock mark
        serve 1001 /tmp/towpath-1000/77-00000000000000aa.sock mark
        as 1000 $T ss -a; as 1000 $T ss -a 77 || echo "status $?"
        $T ss -a | wc -l
        [ ! -e /tmp/asked ] && echo "not asked"
        # A user who lies about runs of its own to root.
        as 1002 mkdir -m 711 /tmp/towpath-1002
        n=9000
        for kind in nonsense silent endless drip; do
            n=$((n+1)); serve 1002 /tmp/towpath-1002/$n-00000000000000bb.sock $kind
        done
        serve 1002 /tmp/towpath-1002/9005-00000000000000bb.sock escapes
        as 1002 ln -s /tmp/hidden.sock /tmp/towpath-1002/9006-00000000000000bb.sock
        serve 0 /tmp/hidden.sock mark
        listen='import socket,time; s=socket.create_server(("",80)); open("/tmp/listens","w").close(); time.sleep(60)'
        as 1003 $T run -q -- python3 -c "$listen" &
        until_true test -e /tmp/listens
        $T ss -tlan; echo "status $?"
        $T ss -aj | grep -c '"LISTEN"'
        $T ss -a --user 1002 9001 || echo "status $?"
        [ ! -e /tmp/asked ] && echo "not asked"
        "#
    ));
    let Some((stdout, stderr)) = asked else { return };
    assert!(stdout.contains("status 2\n"), "no such run: {stdout}");
    assert_eq!(stdout.matches("not asked\n").count(), 2, "{stdout}");
    assert!(stdout.lines().any(|l| l.starts_with("LISTEN") && l.contains(":80")), "{stdout}");
    assert!(stdout.contains("status 0\n1\nstatus 125\n"), "{stdout} {stderr}");
    for pid in ["9001", "9002", "9003", "9004", "9005"] {
        let line = stderr.lines().find(|line| line.contains(pid)).unwrap_or_default();
        assert!(line.starts_with("towpath: "), "{pid}: {stderr}");
    }
    for text in [stdout, stderr] {
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
}

/// Runs are identified by the owner of their directory, so that no user can make its own socket
/// look like root's router.
#[test]
fn names_and_process_ids_are_those_of_the_own_user() {
    let asked = script(&format!(
        r#"
        cat > /tmp/serve.py <<'END'
{SERVE}
END
        $T run -q --name atk -- sleep 60 & R=$!
        until_true $T ip --name atk link >/dev/null 2>&1
        evil=/tmp/towpath-1001
        as 1001 mkdir -m 711 $evil
        for run in $R-00000000000000aa-atk 1-00000000000000bb-atk 1-00000000000000cc-lure; do
            as 1001 python3 /tmp/serve.py $evil/$run.sock mark & until_true test -S $evil/$run.sock
        done
        say() {{ echo "$("$@" 2>&1) status $?"; }}
        say $T acl --name atk add id 5 proto icmp action drop
        say $T acl --name atk show
        say $T acl --run $R show
        say $T acl show
        say $T acl --name lure flush
        say $T acl --run 1 show
        say $T completions --live names
        [ ! -e /tmp/asked ] && echo "not asked"
        as 1002 $T run -q --name theirs -- sleep 60 &
        until_true as 1002 $T ip --name theirs link >/dev/null 2>&1
        B=$(as 1002 $T completions --live pids)
        say $T ip --user 1002 --name theirs -br link
        say $T ip --user 1002 --run $B addr add 10.9.9.9/32 dev lo
        say as 1002 $T ip --user 1002 --run $B addr add 10.9.9.9/32 dev lo
        say as 1002 $T ip --user 0 --name atk addr
        say as 1002 $T ss --user 0
        say $T ss -l $B
        say $T ss --user 1002 -H -l $B
        say $T ip --name theirs addr
        listen='import socket,time; s=socket.create_server(("",80)); time.sleep(60)'
        as 1003 $T run -q -- python3 -c "$listen" &
        until_true sh -c "$T ss -Htln 2>/dev/null | grep -q user=1003"
        $T ss -Htlnj 2>/dev/null | grep user
        "#
    ));
    let Some((stdout, stderr)) = asked else { return };
    let rule = "acl add id 5 proto icmp action drop  # 0 packets, 0 bytes status 0";
    let none = "towpath: no `towpath run` or `router` of this user has";
    let not_root = "towpath: runs of user 0 answer that user and root only status";
    let lines = [
        " status 0".to_owned(),
        rule.to_owned(),
        rule.to_owned(),
        rule.to_owned(),
        format!("{none} the name \"lure\"; with --user: 1001 status 1"),
        format!("{none} process id 1; with --user: 1001 status 1"),
        "atk status 0".to_owned(),
        "not asked".to_owned(),
    ];
    assert!(stdout.starts_with(&(lines.join("\n") + "\n")), "{stdout} {stderr}");
    let rest: Vec<_> = stdout.lines().skip(lines.len()).collect();
    let not_root = not_root.replace("user 0", "user root");
    let wanted = [
        "lo ",
        "eth0 ",
        "towpath: runs of user 1002 can be shown, not changed",
        " status 0",
        &format!("{not_root} 1"),
        &format!("{not_root} 2"),
        "towpath: no `towpath run` or `proxy` of this user has process id",
        " status 0",
        "towpath: no `towpath run` or `router` of this user has the name \"theirs\"",
        "    \"user\": \"1003\",",
    ];
    assert_eq!(rest.len(), wanted.len(), "{stdout} {stderr}");
    for (line, wanted) in rest.iter().zip(wanted) {
        assert!(line.starts_with(wanted), "{wanted}: {stdout} {stderr}");
    }
    assert_eq!(stdout.matches("; with --user: 1002 status").count(), 2, "{stdout}");
}

/// Measures the memory used for requests and answers with large unknown fields.
#[test]
fn memory_of_requests_and_answers_is_bounded() {
    let grown = script(
        r#"
        cat > /tmp/ask.py <<'END'
import socket, sys
head, size = b'{"version":1,"request":"info","x":[', 2 << 20
for unit in b'[],', b'{"":0},', b'{"":{"":0}},':
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
    s.sendall(head + unit * (size // len(unit)) + b'0]}\n')
    answer = b''
    while more := s.recv(65536): answer += more
    assert b'"pid"' in answer and b'"error"' not in answer, answer
END
        cat > /tmp/serve.py <<'END'
import json, os, socket, sys
body = b'"version":1,"kind":"run","program":[],"sockets":[{"proto":"tcp","state":"X","recv_q":0,'
body += b'"send_q":0,"cwnd":0,"rtt_us":0,"holders":[],"recv_buffer":0,"send_buffer":0,'
body += b'"v6_only":false,"x":[' + b'0,' * (int(sys.argv[2]) // 2) + b'0]}]}'
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(5)
while True:
    c, _ = s.accept()
    c.recv(65536)
    try: c.sendall(b'{"pid":1,' + body)
    except OSError: pass
    c.close()
END
        cat > /tmp/peak.py <<'END'
import resource, subprocess, sys
said = subprocess.run(sys.argv[1:], capture_output=True, text=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
print(peak, said.returncode, said.stderr.strip())
END
        $T run -q --name large -- sleep 60 & R=$!
        until_true $T ip --name large link >/dev/null 2>&1
        kib() { awk -v key=$1: '$1 == key { print $2 }' /proc/$R/status; }
        peak=$(kib VmHWM); rss=$(kib VmRSS)
        python3 /tmp/ask.py $(echo /run/towpath/$R-*-large.sock)
        echo $((($(kib VmHWM) - peak) >> 10)) $((($(kib VmRSS) - rss) >> 10))
        as 1002 mkdir -m 711 /tmp/towpath-1002
        S=/tmp/towpath-1002/1-00000000000000bb.sock
        as 1002 python3 /tmp/serve.py $S $((20 << 20)) & until_true test -S $S
        python3 /tmp/peak.py $T ss --user 1002
        python3 /tmp/peak.py $T ss
        "#,
    );
    let Some((stdout, stderr)) = grown else { return };
    let lines: Vec<Vec<&str>> = stdout.lines().map(|line| line.splitn(3, ' ').collect()).collect();
    let mib = |line: usize, word: usize| lines[line][word].parse::<i64>().expect("a number");
    // Without limits, an array takes a hundred times its size, of which most is never freed.
    assert!(mib(0, 0) < 64 && mib(0, 1) < 32, "{stdout} {stderr}");
    // Without limits, an array takes eighteen times its size.
    assert!(mib(1, 0) < 120 && lines[1][1..] == ["0", ""], "{stdout} {stderr}");
    let cut = "towpath: the run with process id 1 of user 1002 was not heard to the end: \
               more than 16 MiB came";
    assert!(mib(2, 0) < 64 && lines[2][1..] == ["0", cut], "{stdout} {stderr}");
}

/// Towpath refuses to run set-user-ID or set-group-ID, because its user would gain these
/// privileges.
#[test]
fn a_set_id_towpath_refuses() {
    let refused = script(
        r#"
        chmod 4755 $T
        as 1000 $T run -q -- true || echo "status $?"
        as 1000 $T ss || echo "status $?"
        chown 0:1001 $T; chmod 2755 $T
        as 1000 $T run -q -- true || echo "status $?"
        chmod 755 $T
        as 1000 $T run -q -- true && echo "status 0"
        "#,
    );
    let Some((stdout, stderr)) = refused else { return };
    assert_eq!(stdout, "status 125\nstatus 125\nstatus 125\nstatus 0\n", "{stderr}");
    assert!(stderr.contains("set-user-ID"), "{stderr}");
}
