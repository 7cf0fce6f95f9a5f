"""What a process may not do while it runs edited code.

`confine` takes away, for this process and all that it starts:

* writing, making or removing files outside its scratch folder (landlock);
* TCP connections, abstract sockets and signals to processes outside (landlock, as far as the kernel has them);
* sockets of every kind, tracing and signalling other processes, mounts, kernel modules, new sessions (seccomp);
* capabilities, also where it runs as root;
* more than `MEMORY_BYTES` of memory.

Reading files stays possible, since imports need it. Where the kernel lacks landlock or seccomp the rest still holds,
and `Isolation.missing` names what does not. Numbers of system calls and structures: Linux's ``landlock.h``,
``seccomp.h``, ``unistd.h`` and ``capability.h``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MEMORY_BYTES = 16 << 30
"""Private memory of a process that runs a version."""

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22


@dataclass(frozen=True)
class Isolation:
    """What confines edited code on this machine."""

    missing: tuple[str, ...]
    """What this kernel cannot take away, in words; empty where everything is."""

    def __str__(self) -> str:
        return f"without protection from {' and '.join(self.missing)}" if self.missing else "full"


@cache
def available() -> Isolation:
    """What `confine` can do here. Changes nothing."""
    missing = []
    if _landlock_version() < 1:
        missing.append("writing to your files (the kernel has no landlock)")
    if _SYSCALLS is None or not Path("/proc/sys/kernel/seccomp/actions_avail").exists():
        missing.append("network access (no seccomp here)")
    return Isolation(tuple(missing))


def confine(scratch: Path) -> None:
    """Takes the rights away that the module's docstring lists. There is no way back."""
    libc = _libc()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _landlock_version() >= 1:
        _restrict_files(libc, scratch)
    _drop_capabilities(libc)
    if not available().missing or _SYSCALLS is not None:
        _filter_calls(libc)


def die_with_parent(parent: int) -> None:
    """Ends this process when its parent ends, also when that has happened already."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# Files, by landlock -------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 14))
"""Removing and making files and folders of every kind, and moving them between folders."""


@cache
def _landlock_version() -> int:
    """Of the kernel's interface; 0 or less without landlock."""
    return int(_libc().syscall(_CREATE_RULESET, None, 0, 1))


def _restrict_files(libc: ctypes.CDLL, scratch: Path) -> None:
    version = _landlock_version()
    rights = _WRITE_FILE | _MAKE_AND_REMOVE
    rights &= ~(1 << 13) if version < 2 else ~0
    rights |= (_TRUNCATE if version >= 3 else 0) | (_IOCTL_DEV if version >= 5 else 0)
    network = 3 if version >= 4 else 0  # binding and connecting TCP sockets
    scope = 3 if version >= 6 else 0  # abstract sockets, signals
    attributes = struct.pack("QQQ", rights, network, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    for path, allowed in ((str(scratch), rights), ("/dev/null", rights & (_WRITE_FILE | _TRUNCATE))):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0):
            raise OSError(ctypes.get_errno(), f"landlock_add_rule for {path}")
        os.close(place)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))


# System calls, by seccomp -------------------------------------------------------------------------

_REFUSED = (
    "socket", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_send_signal", "pidfd_getfd", "kill", "tkill",
    "io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "mount", "umount2", "pivot_root", "chroot", "unshare",
    "setns", "init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon", "swapoff", "keyctl",
    "add_key", "request_key", "setsid", "setpgid", "settimeofday", "clock_settime", "acct", "quotactl",
    "open_by_handle_at", "shmget", "msgget", "semget",
)  # fmt: skip
_OWN_ALONE = ("tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""Allowed for this process's own number, with which a process aborts."""

_X86_64 = (
    41, 101, 310, 311, 424, 438, 62, 200, 425, 321, 298, 323, 165, 166, 155, 161, 272, 308, 175, 313, 176, 246, 169,
    167, 168, 250, 248, 249, 112, 109, 164, 227, 163, 179, 304, 29, 68, 64,
)  # fmt: skip
_AARCH64 = (
    198, 117, 270, 271, 424, 438, 129, 130, 425, 280, 241, 282, 40, 39, 41, 51, 97, 268, 105, 273, 106, 104, 142,
    224, 225, 219, 217, 218, 157, 154, 170, 112, 89, 60, 265, 194, 186, 190,
)  # fmt: skip
_SYSCALLS = {
    "x86_64": (0xC000003E, dict(zip(_REFUSED, _X86_64, strict=True)), (234, 129, 297)),
    "aarch64": (0xC00000B7, dict(zip(_REFUSED, _AARCH64, strict=True)), (131, 138, 240)),
}.get(platform.machine())
_X32 = 0x40000000
"""x86-64's second table of calls begins here; none of it is allowed."""
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050000 | 1
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06


def _filter_calls(libc: ctypes.CDLL) -> None:
    steps = list(_program(os.getpid()))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _program(pid: int) -> Iterator[tuple[int, int, int, int]]:
    """The filter: instructions as (operation, jump if true, jump if false, value)."""
    assert _SYSCALLS is not None
    machine, refused, own_alone = _SYSCALLS
    yield _LOAD, 0, 0, 4  # which machine's table
    yield _EQUAL, 1, 0, machine
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, 0  # the number of the call
    if platform.machine() == "x86_64":
        yield _AT_LEAST, 0, 1, _X32
        yield _RETURN, 0, 0, _KILL
    for number in sorted(refused.values()):
        yield _EQUAL, 0, 1, number
        yield _RETURN, 0, 0, _EPERM
    for number in own_alone:
        yield _EQUAL, 0, 4, number
        yield _LOAD, 0, 0, 16  # the low half of its first argument
        yield _EQUAL, 0, 1, pid
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _EPERM
    yield _RETURN, 0, 0, _ALLOW
