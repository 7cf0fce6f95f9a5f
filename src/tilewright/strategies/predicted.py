"""The shortest predicted times first: the strategy that `tune` uses unless another is named."""

from __future__ import annotations

from tilewright.strategies.base import Search, SearchSpace, Strategy


class Predicted(Strategy):
    name = "predicted"

    def search(self, space: SearchSpace) -> Search:
        """The ``top`` best predicted, and the baseline where times are measured. Without a GPU, while all are
        incorrect, the next ones."""
        first = space.ranked[: space.top]
        if space.measured:
            yield first if space.baseline is None or space.baseline in first else (*first, space.baseline)
            return
        outcomes = yield first
        for configuration in space.ranked[space.top :]:
            if any(outcome.status != "wrong" for outcome in outcomes):
                return
            outcomes = yield (configuration,)


STRATEGY = Predicted()
