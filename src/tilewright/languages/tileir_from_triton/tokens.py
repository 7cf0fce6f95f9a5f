"""The memory tokens, which order accesses to the same memory. Accesses without tokens have no order in Tile IR.

For each written set of pointers (see `aliasing`) there are two tokens. A read waits for the token of the last write. A
write waits for the token of all accesses so far. Loops and branches carry both tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tilewright.languages.tileir_from_triton.aliasing import Aliases, Set
from tilewright.languages.tileir_from_triton.ttir import TtirOp
from tilewright.languages.tileir_from_triton.writer import TOKEN, Handle, Writer

Key: TypeAlias = "tuple[Set, str]"
LAST_WRITE, LAST = "last write", "last access"


class MemoryTokens:
    """The current tokens of a translation."""

    def __init__(self, writer: Writer, aliases: Aliases) -> None:
        self.emit, self.aliases = writer.emit, aliases
        self.current: dict[Key, Handle] = {}
        if aliases.written:
            first = self.emit("MakeToken", TOKEN)
            self.current = {(one, which): first for one in sorted(aliases.written) for which in (LAST_WRITE, LAST)}

    def before(self, op: TtirOp, writes: bool) -> Handle | None:
        """Returns the token for which an access must wait. Returns None if its memory is never written."""
        return self.current.get((self.aliases.of(op), LAST if writes else LAST_WRITE))

    def after(self, op: TtirOp, token: Handle, writes: bool) -> None:
        """Stores the ``token`` of an access. Later accesses to the same memory wait for it."""
        where = self.aliases.of(op)
        if (where, LAST) not in self.current:
            return
        if writes:
            self.current[where, LAST_WRITE] = self.current[where, LAST] = token
        else:
            self.current[where, LAST] = self.joined([self.current[where, LAST], token])

    def joined(self, tokens: Sequence[Handle]) -> Handle:
        distinct = list({token.value_id: token for token in tokens}.values())
        return distinct[0] if len(distinct) == 1 else self.emit("JoinTokens", TOKEN, distinct)

    def before_all(self) -> Handle | None:
        """Returns one token whose wait covers all accesses so far; None if the kernel writes no memory.

        An operation across which no access may move waits for this token, such as an atomic update with acquire and
        release.
        """
        last = [token for (_, which), token in self.current.items() if which == LAST]
        return self.joined(last) if last else None

    def after_all(self, token: Handle) -> None:
        self.current = dict.fromkeys(self.current, token)

    def carried(self, ops: Sequence[TtirOp]) -> list[Key]:
        """Returns the keys of the tokens that these operations change."""
        if any(op.name in ("tt.atomic_rmw", "tt.atomic_cas") for outer in ops for op in outer.walk()):
            return list(self.current)  # they may order accesses to all memory
        accessed = self.aliases.accessed(ops)
        keys = [(one, which) for one, written in accessed.items() for which in (LAST_WRITE, LAST)[not written :]]
        return [key for key in keys if key in self.current]

    def take(self, keys: Sequence[Key]) -> list[Handle]:
        return [self.current[key] for key in keys]

    def put(self, keys: Sequence[Key], tokens: Sequence[Handle]) -> None:
        self.current.update(zip(keys, tokens, strict=True))
