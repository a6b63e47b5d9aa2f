"""A network of the tasks' own: a namespace of the Linux kernel in which loopback is the only interface that is up.

A process makes it, since only a process without threads can, sends descriptors of it to the launcher and exits; the
namespace lives as long as one of them is open, or a task is in it. Run as a file, `python -I -S isolation.py SOCKET` is
that process. https://man7.org/linux/man-pages/man7/network_namespaces.7.html
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


@contextlib.contextmanager
def namespaces(wanted: bool) -> Iterator[Sequence[int]]:
    """Descriptors of the namespaces for the tasks, in the order in which to enter them; none where none are wanted."""
    if not wanted:
        yield ()
        return
    found = _made()
    try:
        yield found
    finally:
        for descriptor in found:
            os.close(descriptor)


def _made() -> list[int]:
    from mirrorkit.errors import ClusterError  # not where this file is run by itself

    if sys.platform != "linux":
        raise ClusterError("isolate needs network namespaces, which only Linux has. Close the ports instead.")
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            done = subprocess.run(
                [sys.executable, "-I", "-S", __file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        _, found, *_ = socket.recv_fds(ours, 1, 2)
    if done.returncode != 0 or not found:
        for descriptor in found:
            os.close(descriptor)
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ClusterError(
            f"isolate needs a network namespace, which this machine refuses: {said[0]}. Allow user namespaces (sysctl "
            "user.max_user_namespaces; on Debian kernel.unprivileged_userns_clone=1, on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0; in a container its seccomp profile or CAP_SYS_ADMIN), or "
            "leave isolate out and close the ports to others."
        )
    return found


def _main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    files = ["net"]
    if libc.unshare(_CLONE_NEWNET):  # who may not do that may do it in a user namespace, where it is root
        user, group = os.geteuid(), os.getegid()
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
        # The same names inside as outside, so that files belong to the user.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        files = ["user", "net"]  # the first gives the right to enter the second
    _raise_loopback()
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        socket.send_fds(launcher, [b"x"], [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in files])


def _raise_loopback() -> None:
    import fcntl  # not on Windows

    with socket.socket() as any_socket:
        request = struct.pack("16s16x", b"lo")
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    _main()
