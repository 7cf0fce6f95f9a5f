"""Restricts the process that runs edited code.

For this process and all that it starts, `confine` forbids:

* writing, making or removing files outside its scratch folder (landlock);
* TCP connections, abstract sockets and signals to processes outside (landlock, if Linux supports it);
* sockets, tracing and signalling other processes, changing modes, owners and times of files, mounts, kernel modules,
  new sessions (seccomp);
* capabilities, also for root;
* more than `MEMORY_BYTES` of memory.

Files can be read, because imports read files. If Linux lacks landlock or seccomp, the other limits still apply, and
`unprotected` names the missing limits. System call numbers and structures are from Linux's ``landlock.h``,
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
from functools import cache
from pathlib import Path

MEMORY_BYTES = 6 << 30
"""The most private memory of a process that runs a version, in bytes."""

_SECCOMP = Path("/proc/sys/kernel/seccomp/actions_avail")
"""This file exists if Linux can filter system calls."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22


@cache
def unprotected() -> tuple[str, ...]:
    """Returns descriptions of the actions that `confine` cannot prevent on this machine. Changes nothing."""
    missing = []
    if _landlock_version() < 1:
        missing.append("writing to your files (the kernel has no landlock)")
    if _MACHINE is None or not _SECCOMP.exists():
        missing.append("network access (no seccomp here)")
    return tuple(missing)


def confine(scratch: Path) -> None:
    """Restricts this process until its end, as the module's docstring lists. ``scratch``: the writable folder."""
    libc = _libc()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _landlock_version() >= 1:
        _restrict_files(libc, scratch)
    _drop_capabilities(libc)
    if _MACHINE is not None and _SECCOMP.exists():
        _filter_calls(libc)


def die_with_parent(parent: int) -> None:
    """Makes Linux kill this process when its parent ends. Exits at once if the parent has ended already."""
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
"""The rights to make and remove files and folders of every kind, and to move them between folders."""


@cache
def _landlock_version() -> int:
    """Returns the version of Linux's landlock interface; 0 or less if there is none."""
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

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "kill": (62, 129), "tkill": (200, 130), "setsid": (112, 157), "setpgid": (109, 154),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "chmod": (90, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "utimensat": (280, 88), "futimesat": (261, None), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "acct": (163, 89), "quotactl": (179, 60), "open_by_handle_at": (304, 265),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "setpriority": (141, 140),
    "sched_setscheduler": (144, 119), "migrate_pages": (256, 238), "move_pages": (279, 239), "mq_open": (240, 180),
}  # fmt: skip
"""Maps a forbidden system call to its numbers on x86-64 and AArch64. Importing and lowering need no such call."""
_OWN_ALONE: dict[str, tuple[int, int]] = {
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
}  # fmt: skip
"""Calls that are allowed only if the first argument is 0 or this process's id. Aborting needs `tgkill`."""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Maps a machine to its index in the tables above, and to its number in a seccomp filter (``AUDIT_ARCH_…``)."""
_MACHINE = _MACHINES.get(platform.machine())
_X32 = 0x40000000
"""First number of x86-64's second table of system calls (x32). All of its calls are forbidden."""
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050000 | 1
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06


def _filter_calls(libc: ctypes.CDLL) -> None:
    steps = list(_program(os.getpid()))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _program(pid: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the instructions of the filter: (operation, jump if true, jump if false, value)."""
    assert _MACHINE is not None, "only called where the machine is known"
    column, machine = _MACHINE
    yield _LOAD, 0, 0, 4  # the number of the machine
    yield _EQUAL, 1, 0, machine
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, 0  # the number of the system call
    if platform.machine() == "x86_64":
        yield _AT_LEAST, 0, 1, _X32
        yield _RETURN, 0, 0, _KILL
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, _EPERM
    for own in _OWN_ALONE.values():
        yield _EQUAL, 0, 5, own[column]
        yield _LOAD, 0, 0, 16  # the low half of its first argument
        yield _EQUAL, 1, 0, 0
        yield _EQUAL, 0, 1, pid
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _EPERM
    yield _RETURN, 0, 0, _ALLOW
