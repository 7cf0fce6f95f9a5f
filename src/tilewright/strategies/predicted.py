"""The default strategy of `tune`: the shortest predicted times first."""

from __future__ import annotations

from tilewright.strategies.base import Search, SearchSpace, Strategy


class Predicted(Strategy):
    name = "predicted"

    def search(self, space: SearchSpace) -> Search:
        """Yields the ``top`` best predicted, and the baseline if times are measured. Without a GPU, goes on while all
        are incorrect."""
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
