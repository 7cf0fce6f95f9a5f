"""Finds which user a connection over the loopback interface belongs to.

TCP has no users, but Linux lists the owner of each socket in ``/proc/net/tcp``. Both ends of a loopback connection are
sockets of this machine.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

SOCKETS = Path("/proc/net/tcp")
ROOT = 0


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Returns whether the process at the client's end of a connection is of this user, or of root.

    client, server: the IPv4 addresses and ports of both ends.
    """
    ends = [_hexadecimal(*client), _hexadecimal(*server)]
    for line in SOCKETS.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == ends:
            return int(fields[7]) in (os.getuid(), ROOT)
    return False


def _hexadecimal(host: str, port: int) -> str:
    """Returns an end of a connection as the kernel prints it: the address in the byte order of the machine."""
    address = int.from_bytes(socket.inet_aton(host), "little")
    return f"{address:08X}:{port:04X}"
