//! Script prologue that replaces the directories of runs by empty ones, for tests that require a
//! machine without other runs.

/// Shell lines for the beginning of a script in its own mount namespace (`unshare -m bash -c`).
///
/// Mounts empty directories over `/tmp`, `/run`, `/var/lib` and `/mnt`, so that runs outside are
/// neither visible nor affected. `$T` is a copy of the program named by `$0` that every user may
/// execute, because the mounts may hide the checkout.
///
/// `as UID WORD...` executes a command as another user without that user's groups.
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
