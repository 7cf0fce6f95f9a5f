"""Tries on a GPU to capture a model in a CUDA graph: waits of the host, the capture, equal replays, and the times.

    sync debug → warm-up → capture → 20 replays with changing inputs, each against eager → eager and replay in turn

A model that computes gradients is captured with its backward pass by ``torch.cuda.make_graphed_callables``. Any other
is captured by ``torch.cuda.graph``, with inputs in buffers that stay. Before each comparison, the buffers of the module
and the seed are the same, so dropout and running statistics are compared, too.
"""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.errors import in_one_line
from tilewright.records import Json
from tilewright.runtime.graphs.calls import ModelCall, copies
from tilewright.runtime.observed_tensors import tensors_in
from tilewright.runtime.operations.places import ProgramPlaces, line_at

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

REPLAYS = 20
"""How many replays are compared with eager calls."""
FACTOR = 16.0
"""Outputs may differ by this many units in the last place of the largest value: libraries may choose another kernel."""
ROUNDS, SAMPLE_MS = 40, 2.0
"""How often eager and replay take turns, and the time of one sample."""
SYNCHRONISES = "called a synchronizing CUDA operation"
"""What torch 2.13 warns of in this debug mode. The mode also warns once that it is a prototype."""
Tensors: TypeAlias = "list[Tensor]"
Call: TypeAlias = Callable[[Tensors], Tensors]


class CaptureTrial:
    """The trial of one model. ``calls``: calls that the program made. ``warm_up``: the calls before the capture."""

    def __init__(self, module: Module, calls: Sequence[ModelCall], warm_up: int, root: str) -> None:
        from torch.utils._pytree import tree_flatten

        self.module, self.warm_up, self.places = module, warm_up, ProgramPlaces(root)
        last = calls[-1]
        leaves, self._form = tree_flatten((last.args, last.kwargs))
        self._leaves = leaves
        self._at = [n for n, each in enumerate(leaves) if _is_tensor(each)]
        flat = [tree_flatten((each.args, each.kwargs)) for each in calls]
        self.inputs = [[each[n] for n in self._at] for each, form in flat if form == self._form and self._alike(each)]
        self.gradients, self.inference = last.gradients, last.inference
        self._shapes = len(
            {str([(tuple(each[n].shape)) for n in self._at]) for each, form in flat if form == self._form}
        )
        self._numbers = any(self._others(each) != self._others(leaves) for each, form in flat if form == self._form)

    def record(self) -> dict[str, Json]:
        """Returns the result of the trial. ``capture`` is "" if the capture succeeded; else the error in one line."""
        import torch

        record: dict[str, Json] = {
            "gradients": self.gradients, "shapes": self._shapes, "numbers": self._numbers, "capture": "",
        }  # fmt: skip
        with self._modes(), torch.random.fork_rng(devices=[torch.cuda.current_device()]):
            record["waits"] = self._waits()
            try:
                replay = self._captured()
            except Exception as error:
                first, place = self._origin(error)
                return {**record, "capture": in_one_line(first), "capture_at": place}
            record |= self._compared(replay)
            return {**record, **self._timed(replay)}

    # Calls ------------------------------------------------------------------------------------------

    def _alike(self, leaves: list[Any]) -> bool:
        """Returns whether inputs have the shapes and types of the last call."""
        return all(
            _is_tensor(leaves[n])
            and (leaves[n].shape, leaves[n].dtype) == (self._leaves[n].shape, self._leaves[n].dtype)
            for n in self._at
        )

    def _others(self, leaves: list[Any]) -> list[Any]:
        """Returns the numbers and texts among the inputs."""
        return [each for each in leaves if isinstance(each, (int, float, bool, str))]

    def _modes(self) -> Any:
        import torch

        return torch.inference_mode() if self.inference else torch.set_grad_enabled(self.gradients)

    def _forward(self, tensors: Iterable[Any]) -> Any:
        """Calls the forward pass with these tensors as inputs."""
        from torch.utils._pytree import tree_unflatten

        leaves = list(self._leaves)
        for n, each in zip(self._at, tensors, strict=True):
            leaves[n] = each
        args, kwargs = tree_unflatten(leaves, self._form)
        return self.module.forward(*args, **kwargs)

    def _eager(self, tensors: Tensors) -> Tensors:
        """Returns the outputs of a call, and its gradients."""
        return self._with_gradients(_tensors(self._forward(tensors)))

    def _with_gradients(self, outputs: Tensors) -> Tensors:
        import torch

        if not self.gradients:
            return outputs
        ends = [each for each in outputs if each.requires_grad]
        into = [each for each in self.module.parameters() if each.requires_grad]
        starts = [torch.ones_like(each) for each in ends]
        found = torch.autograd.grad(ends, into, starts, allow_unused=True)
        return [*(each.detach() for each in outputs), *(each for each in found if each is not None)]

    # Capture ----------------------------------------------------------------------------------------

    def _waits(self) -> Json:
        """Returns the places at which the host waits for the GPU in one call: file, line and message."""
        import torch

        found: dict[tuple[str, int], Json] = {}

        def show(message: Warning | str, *_: Any) -> None:
            if (place := line_at(self.places)) is not None and SYNCHRONISES in str(message):
                found.setdefault(place, [*place, in_one_line(Exception(message))])

        self._eager(self.inputs[-1])  # the first call may compile and tune kernels, which waits
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show  # type: ignore[assignment]
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self._eager(self.inputs[-1])
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return list(found.values())

    def _captured(self) -> Call:
        """Captures the model, and returns a function that copies inputs into its buffers and replays it."""
        import torch

        was = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a cached cast would be freed before the replay
        state = self._state()
        try:
            return self._graphed() if self.gradients else self._replayed()
        finally:
            torch.set_autocast_cache_enabled(was)
            self._restore(state)

    def _replayed(self) -> Call:
        import torch

        kept = [each.clone() for each in self.inputs[-1]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.warm_up):
                self._forward(kept)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = _tensors(self._forward(kept))

        def replay(tensors: Tensors) -> Tensors:
            for mine, given in zip(kept, tensors, strict=True):
                mine.copy_(given)
            graph.replay()
            return [each.clone() for each in outputs]

        return replay

    def _graphed(self) -> Call:
        import torch

        trial = self

        class Inner(torch.nn.Module):  # type: ignore[misc]
            """The model without hooks, which ``make_graphed_callables`` refuses."""

            def __init__(self) -> None:
                super().__init__()
                self.model = trial.module
                self.training = trial.module.training

            def forward(self, *tensors: Tensor) -> Any:
                return trial._forward(tensors)

        give_new_parameters(self.module)
        sample = copies(tuple(self.inputs[-1]))
        graphed = torch.cuda.make_graphed_callables(Inner(), sample, self.warm_up, allow_unused_input=True)
        return lambda tensors: self._with_gradients([each.clone() for each in _tensors(graphed.forward(*tensors))])

    # Comparison and times ---------------------------------------------------------------------------

    def _compared(self, replay: Call) -> dict[str, Json]:
        """Compares replays with eager calls, each with other inputs."""
        import torch

        state, equal, within, worst = self._state(), 0, 0, 0.0
        for number in range(REPLAYS):
            given = self._inputs(number)
            both = []
            for call in (self._eager, replay):
                self._restore(state)
                torch.cuda.manual_seed(number)
                both.append([each.detach().clone() for each in call(given)])
            self._restore(state)
            pairs = list(zip(*both, strict=True))
            if not pairs:
                raise ValueError("the model returns no tensor that could be compared")
            ratio = max((_difference(*pair) for pair in pairs), default=0.0)
            equal += all(torch.equal(one, other) for one, other in pairs)
            within += ratio <= 1.0
            worst = max(worst, ratio)
        return {"replays": REPLAYS, "equal": equal, "within": within, "worst": worst if worst < 1e30 else None}

    def _inputs(self, number: int) -> Tensors:
        """Returns inputs that differ in each replay: first those of the program's calls, then changed ones."""
        import torch

        given = self.inputs[number % len(self.inputs)]
        turns = number // len(self.inputs)
        if not turns:
            return given
        changed = []
        for each in given:
            if each.is_floating_point():
                changed.append(
                    (each * (1.0 + 0.1 * torch.randn_like(each))).detach().requires_grad_(each.requires_grad)
                )
            else:
                changed.append(each.roll(turns, dims=0) if each.dim() else each)
        return changed

    def _state(self) -> list[tuple[Tensor, Tensor]]:
        return [(each, each.clone()) for each in self.module.buffers()]

    def _restore(self, state: list[tuple[Tensor, Tensor]]) -> None:
        import torch

        with torch.no_grad():
            for mine, saved in state:
                mine.copy_(saved)

    def _timed(self, replay: Call) -> dict[str, Json]:
        """Times eager calls and replays in turn, the first of each round at random."""
        rng, calls = random.Random(0), {"eager_us": self._eager, "replay_us": replay}
        samples: dict[str, list[float]] = {name: [] for name in calls}
        once = {name: min(self._us(call, 1) for _ in range(3)) for name, call in calls.items()}
        many = {name: max(1, min(100, int(1e3 * SAMPLE_MS / us))) for name, us in once.items()}
        for _ in range(ROUNDS):
            for name in rng.sample(list(calls), 2):
                samples[name].append(round(self._us(calls[name], many[name]), 3))
        return {name: list[Json](us) for name, us in samples.items()}

    def _us(self, call: Call, many: int) -> float:
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for n in range(many):
            call(self.inputs[n % len(self.inputs)])
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end)) / many

    def _origin(self, error: BaseException) -> tuple[BaseException, Json]:
        """Returns the first error that a line of the program raised, and the file and line: the end of a failed capture
        raises another. Without such a line, the first error of all, and None."""
        found: tuple[BaseException, Json] | None = None
        context: BaseException | None = error
        while context is not None:
            error = context
            for frame, line in traceback.walk_tb(context.__traceback__):
                _, lines = self.places.key(frame)
                if lines and lines[0][2] == line:
                    found = (context, [self.places.files[lines[0][0]], line])
            context = context.__context__
        return found or (error, None)


def give_new_parameters(module: Module) -> None:
    """Replaces the parameters of a module by new ones with the same memory.

    A graph of autograd that the program still holds, such as that of its last loss, ties the old ones to the stream
    on which it ran. A capture on another stream would have to wait for that one, which is an error.
    """
    import torch

    new: dict[int, Any] = {}
    for each in module.modules():
        for name, old in each.named_parameters(recurse=False, remove_duplicate=False):
            if id(old) not in new:
                new[id(old)] = torch.nn.Parameter(old.detach(), old.requires_grad)
            setattr(each, name, new[id(old)])


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _tensors(value: Any) -> Tensors:
    return list(tensors_in(value))


def _difference(one: Tensor, other: Tensor) -> float:
    """Returns the largest difference of two tensors in units of what is allowed; above 1 is different."""
    import torch

    if one.shape != other.shape or not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else 1e30
    scale = float(one.abs().max()) if one.numel() else 0.0
    allowed = FACTOR * torch.finfo(one.dtype).eps * scale
    difference = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
    if difference != difference:
        return 0.0 if torch.equal(one.isnan(), other.isnan()) else 1e30
    return difference / allowed if allowed else (0.0 if difference == 0.0 else 1e30)
