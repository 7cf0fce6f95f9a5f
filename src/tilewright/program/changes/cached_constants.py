"""A mask or table that a function makes in each call → made once for each size, device and type.

def forward(self, x):                             @functools.lru_cache(maxsize=8)
    mean = torch.tensor([…]).to(x.device)         def _mean_once(x_device):
    return (x - mean) / …                             mean = torch.tensor([…]).to(x_device)
                                                      return mean
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.constant_tensors import ConstantRun, ConstantsOf
from tilewright.program.reading.flow import changes_name
from tilewright.program.reading.gradients import never_trains
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.often import called_often

KEPT = 8
"""How many sizes are remembered."""


class CachedConstants(ProgramChange):
    name = "cached_constants"
    about = "makes a mask or table once for each size and device, instead of in each call of a function"
    words = ("cache mask*", "cache* constant*", "cache position*", "constant* in forward", "rebuilt in forward",
             "rebuil* mask*", "recreat* in forward", "recompute* table*", "positional table*", "lru_cache")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late", "pageable-copies", "copies")
    order = 34
    absent = "no function of the program makes a constant anew in each call"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        often = called_often(module)
        for function in module.file.every(ast.FunctionDef):
            if function.name not in often or any("cache" in module.code(each) for each in function.decorator_list):
                continue
            taken: set[str] = set()
            reader = ConstantsOf(module, function)
            for run in reader.runs():
                if run.work < 2 and not run.copies:
                    continue
                try:
                    yield _site(module, function, run, taken, reader)
                except NotSure as reason:
                    yield NearMiss(reason.line, reason.reason)


def _site(
    module: ReadModule, function: ast.FunctionDef, run: ConstantRun, taken: set[str], reader: ConstantsOf
) -> ChangeSite:
    place = run.expression or run.statements[-1]
    inference = (n for each in module.program for n in each.file.nodes if each.full(n) == "torch.inference_mode")
    if any(inference) and not never_trains(module):
        raise NotSure("a tensor that is made in inference mode cannot be used in training", place)
    outputs = _outputs(module, function, run)
    moves = _moves(module, function, run, outputs, reader)
    _check_keys(module, run)
    around: tuple[ast.AST, ...] = (function, *module.above(function))
    top = next(each for each in around if module.parent(each) is module.file.tree)
    assert isinstance(top, ast.stmt)
    name = _fresh(module, f"_{'_'.join(outputs) or function.name.strip('_')}_once", taken)
    parameters = _parameters(run)
    cache, imports = module.importing("functools.lru_cache", place)
    parts: list[ast.stmt] | list[ast.expr | ast.stmt] = run.statements or [place]
    inner = [line for part in parts for line in _rewritten(module, part, run, parameters)]
    if run.expression is not None:
        inner[0] = f"return {inner[0]}"
    else:
        inner.append(f"return {', '.join(_returned(module, each, moves, parameters) for each in outputs)}")
    call = f"{name}({', '.join(run.keys)})"
    helper = (f"@{cache}(maxsize={KEPT})", f"def {name}({', '.join(parameters.values())}):",
              *(f"    {line}" for line in inner), "", "")  # fmt: skip
    above = module.insert_before(top, *helper)
    above = Edit(above.start, above.end, above.new.replace("    \n", "\n"))
    if run.expression is not None:
        edits = [module.replace(run.expression, call)]
    else:
        edits = [module.delete(each) for each in run.statements[:-1]]
        edits.append(module.replace(run.statements[-1], f"{', '.join(outputs)} = {call}"))
        edits += [module.replace(move, name) for name, found in moves.items() for move in found]
    return ChangeSite(place.lineno, f"constant in {function.name}", (*imports, above, *edits))


def _outputs(module: ReadModule, function: ast.FunctionDef, run: ConstantRun) -> list[str]:
    """Returns the names of the run that the rest of the function reads. Raises NotSure if it may change one of them."""
    inside = {node for statement in run.statements for node in ast.walk(statement)}
    found = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id not in run.names or node in inside:
            continue
        if isinstance(node.ctx, ast.Load):
            found.append(node.id)
            parent = module.parent(node)
            if isinstance(parent, (ast.Return, ast.Global)) or (
                isinstance(parent, ast.keyword) and parent.arg == "out"
            ):
                raise NotSure(f"line {node.lineno} gives '{node.id}' to the caller, who may change it", node)
            if isinstance(parent, ast.Assign) and parent.value is node:
                raise NotSure(f"line {node.lineno} gives '{node.id}' another name, under which it may change", node)
    for statement in (each for each in function.body if each not in run.statements):
        for name in run.names:
            rebound = isinstance(statement, ast.Assign) and _binds_only(statement, name)
            if changes_name(statement, name) and not rebound:
                raise NotSure(f"line {statement.lineno} changes '{name}'", statement)
            for node in ast.walk(statement):
                if isinstance(node, ast.AugAssign) and name in module.code(node.target):
                    raise NotSure(f"line {node.lineno} changes '{name}'", node)
    if run.expression is not None:
        return []
    if not found:
        raise NotSure("nothing reads it in the function", run.statements[-1])
    first = {name: min(each.lineno for each in run.statements if changes_name(each, name)) for name in found}
    return sorted(first, key=lambda name: first[name])


def _moves(
    module: ReadModule, function: ast.FunctionDef, run: ConstantRun, outputs: list[str], reader: ConstantsOf
) -> dict[str, list[ast.Call]]:
    """Returns the calls ``name.to(x.device)`` of each output that is used only in such calls, all equal. Their copies
    are made once, too.
    """
    found: dict[str, list[ast.Call]] = {}
    inside = {node for statement in run.statements for node in ast.walk(statement)}
    for name in outputs:
        calls: list[ast.Call | None] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node not in inside:
                attribute = module.parent(node)
                call = module.parent(attribute) if isinstance(attribute, ast.Attribute) else None
                match call:
                    case ast.Call(func=ast.Attribute(attr="to" | "cuda") as function_) if function_ is attribute:
                        calls.append(call)
                    case _:
                        calls.append(None)
        texts = {module.code(call) if call else "" for call in calls}
        first = calls[0] if calls else None
        if len(texts) != 1 or not isinstance(first, ast.Call) or first.keywords or len(first.args) > 1:
            continue
        keys = [reader.keys(each, module.statement(first), run.names) for each in first.args]
        if all(keys is not None for keys in keys):
            for key in (each for keys in keys for each in keys or ()):
                run.keys.setdefault(module.code(key), [])
            found[name] = [call for call in calls if isinstance(call, ast.Call)]
    return found


def _returned(module: ReadModule, name: str, moves: dict[str, list[ast.Call]], parameters: dict[str, str]) -> str:
    if name not in moves:
        return name
    call = moves[name][0]
    assert isinstance(call.func, ast.Attribute)
    texts = [module.code(each) for each in call.args]
    return f"{name}.{call.func.attr}({', '.join(parameters.get(text, text) for text in texts)})"


def _binds_only(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in statement.targets)


def _check_keys(module: ReadModule, run: ConstantRun) -> None:
    """Raises NotSure if a key may change before the last statement of the run, which evaluates the keys."""
    names = {
        node.id for keys in run.keys.values() for key in keys for node in ast.walk(key) if isinstance(node, ast.Name)
    }
    for name in names & run.names:
        firsts = [each for each in run.statements if changes_name(each, name)]
        uses = [
            k
            for keys in run.keys.values()
            for k in keys
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(k))
        ]
        if len(firsts) != 1 or any(use.lineno > firsts[0].lineno for use in uses):
            raise NotSure(f"'{name}' has several values", run.statements[-1])
    if run.statements:
        block = module.function_of(run.statements[0])
        assert block is not None
        between = block.body[block.body.index(run.statements[0]) : block.body.index(run.statements[-1])]
        for statement in (each for each in between if each not in run.statements):
            bound = next((name for name in names if changes_name(statement, name)), "")
            early = [k for keys in run.keys.values() for k in keys if k.lineno < statement.lineno
                     and any(isinstance(n, ast.Name) and n.id == bound for n in ast.walk(k))]  # fmt: skip
            if bound and early:
                raise NotSure(f"'{bound}' is bound anew between its uses", statement)


def _parameters(run: ConstantRun) -> dict[str, str]:
    """Maps the source of each key to the name of the helper's parameter."""
    found: dict[str, str] = {}
    for text in run.keys:
        name = re.sub(r"\W+", "_", text.removeprefix("self.")).strip("_")
        name = name if name.isidentifier() else f"key_{name}"
        while name in found.values() or (name in run.names and text != name):
            name += "_"
        found[text] = name
    return found


def _rewritten(module: ReadModule, part: ast.AST, run: ConstantRun, parameters: dict[str, str]) -> list[str]:
    """Returns the lines of a statement or expression with parameters in place of keys."""
    start, end = module.span(part)
    places = [(*module.span(key), parameters[text]) for text, keys in run.keys.items() for key in keys]
    code, at = "", start
    for begin, last, name in sorted(each for each in places if start <= each[0] and each[1] <= end):
        code += module.text[at:begin] + name
        at = last
    code = (code + module.text[at:end]).replace("\r\n", "\n")
    first, _, rest = code.partition("\n")
    if not rest:
        return [first]
    if run.expression is not None:
        return [f"({first}", *textwrap.dedent(rest).split("\n")[:-1], f"{textwrap.dedent(rest).split(chr(10))[-1]})"]
    return [first, *(f"    {line}" for line in textwrap.dedent(rest).split("\n"))]


def _fresh(module: ReadModule, name: str, taken: set[str]) -> str:
    while name in taken or any(isinstance(n, ast.FunctionDef) and n.name == name for n in module.file.nodes):
        name += "_"
    taken.add(name)
    return name


CHANGE = CachedConstants()
