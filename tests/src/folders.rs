//! Empty folders in the place of those in which runs keep files, for tests that need a machine on
//! which nothing else runs.

/// Shell lines for the start of a script in a mount namespace of its own (`unshare -m bash -c`).
///
/// `/tmp`, `/run`, `/var/lib` and `/mnt` are empty afterwards, so runs outside are neither seen nor
/// disturbed. `$T` is a copy of the program named by `$0` that every user may execute: the mounts
/// hide a checkout below one of these folders.
///
/// `as UID WORD...` executes a command as another user without its groups.
pub const EMPTY_FOLDERS: &str = r#"
    set -eu
    unset XDG_RUNTIME_DIR TOWPATH_PRELOAD LD_PRELOAD
    umask 022
    # Other users cannot execute programs of root's own folders.
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    exec 9<"$0"
    mount --make-rprivate /
    mount -t tmpfs -o mode=755 none /mnt
    T=/mnt/towpath; cat <&9 >$T; chmod 755 $T; exec 9<&-
    mount -t tmpfs -o mode=1777 none /tmp
    mount -t tmpfs -o mode=755 none /run
    mount -t tmpfs -o mode=755 none /var/lib
    cd /
    as() { local uid=$1; shift; setpriv --reuid="$uid" --regid="$uid" --clear-groups -- "$@"; }
"#;
