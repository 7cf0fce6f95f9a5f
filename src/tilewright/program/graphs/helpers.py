"""The classes that the changes put into a user's file: they capture a model's forward pass, and replay it.

Both capture at the first call with a shape, and call the model as it is where no graph applies: on a CPU, for other
inputs than tensors and numbers, in the other mode of autograd, and after `MOST` shapes. The warm-up leaves no trace:
the buffers of the model and the state of the random numbers are restored. ``WARM_UP`` is replaced by a number.
"""

from __future__ import annotations

WARM_UP, WARM_UP_DISTRIBUTED = 3, 11
"""Calls before a capture: what libraries do at first is over. DistributedDataParallel needs 11 (torch's documents)."""
MOST = 8
"""So many graphs are kept. Each keeps the memory of its tensors."""

REPLAYED = '''\
class _Replayed:
    """A model's forward pass as CUDA graphs, one for each shape of its inputs; for calls without gradients."""

    def __init__(self, model):
        self.model, self.forward, self.graphs = model, model.forward, {}

    def __call__(self, *args, **kwargs):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        plain = bool(tensors) and not kwargs and all(map(_is_plain, args))
        if torch.is_grad_enabled() or not plain or not all(each.is_cuda for each in tensors):
            return self.forward(*args, **kwargs)
        if torch.cuda.is_current_stream_capturing():
            return self.forward(*args)
        modes = (self.model.training, torch.is_autocast_enabled(), torch.is_inference_mode_enabled())
        key = modes, *((each.shape, each.dtype) if isinstance(each, torch.Tensor) else each for each in args)
        if key not in self.graphs and len(self.graphs) < MOST:
            self.graphs[key] = self.captured(args)
        if self.graphs.get(key) is None:
            return self.forward(*args)
        graph, inputs, outputs = self.graphs[key]
        for mine, given in zip(inputs, tensors):
            mine.copy_(given)
        graph.replay()
        return torch.utils._pytree.tree_map(_copied, outputs)

    def captured(self, args):
        args = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
        inputs = [each for each in args if isinstance(each, torch.Tensor)]
        state = [(each, each.clone()) for each in self.model.buffers()]
        cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.random.fork_rng(devices=[inputs[0].device]):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self.forward(*args)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                outputs = self.forward(*args)
        torch.set_autocast_cache_enabled(cache)
        for mine, saved in state:
            mine.copy_(saved)
        plain = all(map(_is_plain, torch.utils._pytree.tree_leaves(outputs)))
        return (graph, inputs, outputs) if plain else None


def _is_plain(value):
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, str))


def _copied(output):
    return output.clone() if isinstance(output, torch.Tensor) else output
'''

GRAPHED = '''\
class _Graphed:
    """A model's forward and backward pass as CUDA graphs, a pair for each shape of its inputs; for training."""

    def __init__(self, model):
        self.model, self.forward, self.graphs = model, model.forward, {}

    def __call__(self, *args, **kwargs):
        on_gpu = bool(args) and all(isinstance(each, torch.Tensor) and each.is_cuda for each in args)
        if kwargs or not on_gpu or not self.model.training or not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        key = torch.is_autocast_enabled(), *((each.shape, each.dtype, each.requires_grad) for each in args)
        if key not in self.graphs and len(self.graphs) < MOST:
            self.graphs[key] = self.captured(args)
        if key not in self.graphs:
            return self.forward(*args)
        return torch.utils._pytree.tree_map(torch.clone, self.graphs[key](*args))

    def captured(self, args):
        inner = torch.nn.Module()
        inner.model, inner.forward = self.model, self.forward
        sample = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in args)
        state = [(each, each.clone()) for each in self.model.buffers()]
        cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        with torch.random.fork_rng(devices=[args[0].device]):
            torch.cuda.make_graphed_callables(inner, sample, num_warmup_iters=WARM_UP, allow_unused_input=True)
        torch.set_autocast_cache_enabled(cache)
        with torch.no_grad():
            for mine, saved in state:
                mine.copy_(saved)
        return inner.forward
'''


def helper(text: str, torch: str, warm_up: int) -> list[str]:
    """Returns the lines of a class for a file that calls torch ``torch``."""
    text = text.replace("WARM_UP", str(warm_up)).replace("MOST", str(MOST))
    return text.replace("torch.", f"{torch}.").splitlines()
