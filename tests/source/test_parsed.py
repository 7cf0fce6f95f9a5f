"""Changed texts and places are those that libcst gives for the whole file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libcst.metadata import MetadataWrapper, PositionProvider

import tilewright
from tilewright.source.syntax import Changes, Source

FOLDERS = Path(__file__).parents[2] / "examples", Path(str(tilewright.__file__)).parent / "playbook" / "entries"
FILES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py"))
STATEMENTS = (
    "x = 1\n", "x = 1; y = 2 ;\n", "x = (\n    1,\n)  # one\n", "x = 1 \\\n    + 2\n", '"""two\nlines"""\n',
    "# above\n\n@first  # its comment\n\n# between\n@second(1)\ndef f(a, *b: int, c=1):  # f\n"
    "    def g(): return a; \n    # g\n    return g\n    # below\n",
    "if x:\n  pass\nelif y: z; w\nelse:\n\n    # no\n    y = 1\n  # in between\n",
    "class A(B):\n\n\tx: int = 1\n\n\t@property\n\tdef f(self): ...\n", "\n\n\n", "# alone\n", "\x0c\n",
    "async def h():\n    async with a as b: await c\n", "x = '\u2028\x0c\x85'; y = '''\x0b\n'''\n", "(\n a\n + b)\n",
    "match x:\n    case [1, *_]: pass\n", "type X = int\n", "def f[T](x): pass\n", "for i in x: pass\nwhile 1:\n\tx\n",
    "x = f'''{\na\n}'''\n", "try: pass\nfinally:\n  y\n",
)  # fmt: skip


def walked(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from walked(child)


class Swapped(cst.CSTTransformer):
    """What `Source.changed` does, with a visit of all nodes."""

    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self.changes = changes

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        return self.changes.get(original_node, updated_node)


def changes_of(source: Source, rng: random.Random) -> Changes:
    """Some statements replaced by others, by several, by itself twice or by none, some names and some comments."""
    blocks = [node for node in walked(source.module) if isinstance(node, (cst.Module, cst.IndentedBlock))]
    statements = [node for block in blocks for node in block.body]
    names = [node for node in walked(source.module) if isinstance(node, cst.Name)]
    changes: dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]] = {}
    for node in rng.sample(statements, min(len(statements), rng.randrange(4))):
        new, other = cst.parse_statement("# new\nq = 7\n"), rng.choice(source.module.body)
        several = [new], [new, node], [node, node.deep_clone()], [other, new], []
        changes[node] = cst.FlattenSentinel(rng.choice(several))
    for node in rng.sample(names, min(len(names), rng.randrange(4))):
        changes[node] = cst.Name("other")
    for line in rng.sample(lines := [*source.module.header, *source.module.footer], min(len(lines), rng.randrange(2))):
        changes[line] = cst.EmptyLine(comment=cst.Comment("# other"))
    return changes


def hold(text: str, rng: random.Random, times: int) -> None:
    source = Source("file.py", text)
    found = MetadataWrapper(source.module, unsafe_skip_copy=True).resolve(PositionProvider)
    nodes = list(walked(source.module))
    assert source.every(cst.CSTNode) == nodes
    for node in nodes:
        assert source.place(node) == (found[node].start.line, found[node].start.column), node
    for _ in range(times):
        changes = changes_of(source, rng)
        changed = source.module.visit(Swapped(changes))
        assert isinstance(changed, cst.Module)
        assert source.replaced(changes) == changed.code


@given(
    parts=st.lists(st.sampled_from(STATEMENTS), max_size=6),
    newline=st.sampled_from(["\n", "\r\n"]),
    ends=st.booleans(),
    bom=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_of_odd_texts(parts: list[str], newline: str, ends: bool, bom: bool, rng: random.Random) -> None:
    text = "".join(parts).replace("\n", newline)
    hold("\ufeff" * bom + (text if ends else text.rstrip("\r\n")), rng, 4)


@pytest.mark.parametrize("file", random.Random(0).sample(FILES, 12), ids=lambda file: file.stem)
def test_of_files(file: Path) -> None:
    hold(file.read_text(), random.Random(0), 3)
