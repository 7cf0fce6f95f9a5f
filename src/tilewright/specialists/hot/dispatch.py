"""Makes a function of the user's file call a kernel if the kernel supports the call. Otherwise the function runs as
before."""

from __future__ import annotations

import ast
from pathlib import Path

from tilewright.specialists.hot.functions import HotFunction
from tilewright.specialists.hot.inserting import after_imports, at_begin, free_name
from tilewright.specialists.hot.reference import HotReference
from tilewright.tools.packages import import_root

IMPORT = """try:
    {how}
except ImportError:  # without {language} here, {function} runs as it is
    {name} = None
"""
CALL = """if {name} is not None and {name}.takes({given}):
    return {name}.{function}({tensors})
"""


def module_beside(function: HotFunction, name: str, language: str) -> Path:
    """Returns an unused path for the kernel's module in the folder of the function's file."""
    number, stem = 1, f"{name}_{language}"
    while (path := function.file.with_name(f"{stem}{f'_{number}' if number > 1 else ''}.py")).exists():
        number += 1
    return path


def dispatched(function: HotFunction, reference: HotReference, module: Path, script: Path, language: str) -> str:
    """Returns the new text of the function's file. ``script``: the program's main file, which is in no package.

    The import gets a name that the file does not use.
    """
    text = function.file.read_bytes().decode("utf-8")
    name = free_name(text, module.stem)
    of_package = function.file != script and import_root(function.file) != function.file.parent
    how = f"from . import {module.stem}" if of_package else f"import {module.stem}"
    how += f" as {name}" if name != module.stem else ""
    expressions = {**reference.tensors, **reference.values}
    own = function.node.args.args[0].arg if function.is_method else ""
    said = {each: expression.replace("self.", f"{own}.") for each, expression in expressions.items()}
    call = CALL.format(
        name=name, given=", ".join(said.values()), function=reference.source.function,
        tensors=", ".join(said[each] for each in reference.tensors),
    )  # fmt: skip
    changed = at_begin(text, function.node, call)
    added = IMPORT.format(how=how, language=language, function=function.name, name=name)
    result = after_imports(changed, _set_off(changed, added))
    ast.parse(result)  # raises SyntaxError if the result is not Python
    return result


def _set_off(text: str, added: str) -> str:
    """Returns the lines, with an empty line before them if they follow imports."""
    first = next(iter(ast.parse(text).body), None)
    return f"\n{added}" if first is not None else added
