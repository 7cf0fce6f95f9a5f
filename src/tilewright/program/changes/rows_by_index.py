"""A product with ones and zeros that picks rows of a table → ``embedding``, which reads only these rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.changes.cross_entropy_by_hand import hot_labels
from tilewright.program.changes.functions_by_hand import unused_edits
from tilewright.program.reading.flow import check_move
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.operations import product

FUNCTION = "torch.nn.functional.embedding"


class RowsByIndex(ProgramChange):
    name = "rows_by_index"
    about = "reads the rows of a table by their index, instead of multiplying the whole table with ones and zeros"
    words = (
        "one hot product",
        "one_hot matmul",
        "one hot matmul",
        "embedding lookup",
        "gather row*",
        "index instead of product",
    )
    findings = ("hot-kernel", "short-kernels", "float32-products")
    ran = (r"embedding|index_select",)
    gone = (r"aten::(one_hot|mm|addmm|bmm)$",)
    order = 27
    absent = "the program multiplies no table with ones and zeros"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for node in module.file.nodes:
            parts = product(module, node) if isinstance(node, ast.expr) else None
            if not isinstance(node, ast.expr) or parts is None or parts.spec:
                continue
            final, followed = module.statement(node), dict[ast.stmt, str]()
            labels = hot_labels(module, parts.left, final, followed)
            if labels is None:
                continue
            try:
                for statement in followed:
                    check_move(module, labels, statement, final, followed)
                table, function = module.argument(parts.right), module.spelled(FUNCTION, node)
                edit = module.replace(node, f"{function}({module.argument(labels)}, {table})")
                yield ChangeSite(node.lineno, "rows of a table", (edit, *unused_edits(module, followed, node, final)))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


CHANGE = RowsByIndex()
