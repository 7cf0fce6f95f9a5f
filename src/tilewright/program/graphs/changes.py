"""Changes of a program that capture the step of a model in CUDA graphs, in three ways.

model.forward = _Replayed(model)              calls without gradients, with inputs in buffers that stay
model.forward = _Graphed(model)               training, by torch.cuda.make_graphed_callables
model.compile(mode="reduce-overhead")         by torch.compile, which also captures around what prevents a capture
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.changes.compiled_model import WRAPPED, CompiledModel, compiled
from tilewright.program.graphs.helpers import GRAPHED, REPLAYED, WARM_UP, WARM_UP_DISTRIBUTED, helper
from tilewright.program.reading.models import MadeModel, last_of_making, made_models
from tilewright.program.reading.module import Edit, NotSure, ReadModule

PRESENT = ("torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables")
COMPILED = ("torch.compile", "torch.jit.script", "torch.jit.trace")
WITHOUT_GRADIENTS = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")
WHOLE = ("torch.save", "copy.deepcopy", "pickle.dump", "torch.optim.swa_utils.AveragedModel")
"""Functions that copy a model with its attributes, of which a graph cannot be copied."""


def distributed(modules: tuple[ReadModule, ...]) -> bool:
    """Returns whether a program trains with DistributedDataParallel."""
    return any(module.full(node) == WRAPPED[1] for module in modules for node in module.file.nodes)


def backward_passes(modules: tuple[ReadModule, ...]) -> Iterator[tuple[ReadModule, ast.Call]]:
    """Yields the calls of a backward pass in a program's files."""
    for module in modules:
        for call in module.file.every(ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
                yield module, call


class GraphChange(ProgramChange):
    """Puts a class into the file, and replaces the forward pass of each model by an object of it."""

    impact = "High"
    findings = ("launch-calls", "short-kernels", "host-late")
    ran = (r"cudaGraphLaunch",)
    gone = (r"cudaLaunchKernel",)
    absent = "the program makes no model of a class of its own"
    helper: str
    """The text of the class."""
    trains: bool
    """Whether the change is for calls with a backward pass; else for calls without gradients."""

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if any(self.present(each) for each in module.program):
            return
        added = ""
        for made in made_models(module):
            try:
                yield self._site(module, made, added)
                added = self.helper
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        node = next((node for node in module.file.nodes if module.full(node) in PRESENT), None)
        return f"{module.place(node)} uses {module.full(node)}" if node is not None else ""

    def check(self, made: MadeModel) -> None:
        """Raises NotSure if the class does not apply to a model."""

    def _site(self, module: ReadModule, made: MadeModel, added: str) -> ChangeSite:
        if any(isinstance(each, (ast.For, ast.While)) for each in module.above(made.statement)):
            raise NotSure("the model is made in a loop", made.statement)
        for file in module.program:
            if compiles := next(file.calls(*COMPILED), None):
                raise NotSure(f"{file.place(compiles)} compiles: use mode='reduce-overhead' there", made.statement)
            for call in file.calls(*WHOLE):
                if call.args and file.code(call.args[0]) == made.name:
                    raise NotSure(f"{file.place(call)} copies the whole model, and a graph cannot be copied", call)
        self.check(made)
        torch, imports = module.importing("torch", made.statement)
        warm_up = WARM_UP_DISTRIBUTED if distributed(module.program) else WARM_UP
        lines = helper(self.helper, torch, warm_up)
        name = lines[0].removeprefix("class ").removesuffix(":")
        above = () if added else (_below_imports(module, lines),)
        use = module.insert_after(last_of_making(made, WRAPPED), f"{made.name}.forward = {name}({made.name})")
        return ChangeSite(made.statement.lineno, f"model {made.name}", (*imports, *above, use))


class ReplayedForward(GraphChange):
    """Replays calls without gradients."""

    name = "replayed_forward"
    about = "captures calls of the model without gradients in a CUDA graph, and replays them from buffers that stay"
    order = 10
    helper, trains = REPLAYED, False

    def check(self, made: MadeModel) -> None:
        files = made.module.program
        if not any(file.full(node) in WITHOUT_GRADIENTS for file in files for node in file.file.nodes):
            raise NotSure("no call of the model is under torch.no_grad or torch.inference_mode", made.statement)


class GraphedCallables(GraphChange):
    """Replays the forward and the backward pass of training."""

    name = "graphed_callables"
    about = "captures the model's forward and backward pass in CUDA graphs by make_graphed_callables"
    order = 11
    helper, trains = GRAPHED, True

    def check(self, made: MadeModel) -> None:
        """Raises NotSure without a backward pass, if a step calls the model twice before one, or if gradients may add
        up over several steps: a graph has room for one call's results and gradients."""
        backward = tuple(backward_passes(made.module.program))
        if not backward:
            raise NotSure("the program has no backward pass", made.statement)
        for file, call in backward:
            above = (each for each in file.above(call) if isinstance(each, (ast.For, ast.While, ast.FunctionDef)))
            calls = [each for each in ast.walk(next(above, call)) if isinstance(each, ast.Call)]
            place = file.place(call)
            if sum(file.code(each.func) == made.name for each in calls) > 1:
                raise NotSure(f"{place}: a step calls {made.name} more than once before its backward pass", call)
            if not any(_forgets(file, each, call) for each in calls):
                raise NotSure(f"{place}: no zero_grad() in the same step sets the gradients to None", call)


def _forgets(file: ReadModule, call: ast.Call, backward: ast.Call) -> bool:
    """Returns whether a call is ``zero_grad()``, sets the gradients to None, and runs whenever the backward pass does.

    Without it, the gradient of a parameter stays the graph's own memory, which the next replay overwrites.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "zero_grad":
        return False
    if call.args or any(not (isinstance(each.value, ast.Constant) and each.value.value) for each in call.keywords):
        return False
    around = set(file.above(backward))
    return not any(isinstance(each, ast.If) and each not in around for each in file.above(call))


class ReduceOverhead(CompiledModel):
    """Lets torch.compile capture what it compiles. It also works around lines that prevent a capture."""

    name = "reduce_overhead"
    about = "compiles the model with mode='reduce-overhead', which fuses kernels and replays them in CUDA graphs"
    impact = "High"
    words = ()
    ran = (r"cudaGraphLaunch",)
    gone = (r"cudaLaunchKernel",)
    order = 12

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if any(GraphedCallables().present(each) for each in module.program):
            return
        yield from super().look(module)

    def site(self, module: ReadModule, made: MadeModel) -> ChangeSite:
        return compiled(module, made, 'compile(mode="reduce-overhead")')


GRAPH_CHANGES: tuple[ProgramChange, ...] = (ReplayedForward(), GraphedCallables(), ReduceOverhead())


def _below_imports(module: ReadModule, lines: list[str]) -> Edit:
    """Makes the edit that puts a class below the imports at the top of a file. Raises NotSure if there are none."""
    last: ast.stmt | None = None
    for each in module.file.tree.body:
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            last = each
        elif last is not None:
            break
    if last is None:
        raise NotSure("the file imports nothing at its top", module.file.tree)
    below = module.text[module.span(last)[1] :].partition("\n")[2]
    blank = below[: len(below) - len(below.lstrip("\r\n"))].count("\n")
    return module.insert_after(last, "", "", *lines, *[""] * max(0, 2 - blank))
