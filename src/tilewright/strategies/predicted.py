"""Defines the default search strategy of `tune`."""

from __future__ import annotations

from tilewright.strategies.base import Search, SearchSpace, Strategy


class Predicted(Strategy):
    """Tries the configurations with the shortest predicted times first."""

    name = "predicted"

    def search(self, space: SearchSpace) -> Search:
        """Yields the ``top`` configurations with the shortest predicted times.

        If times are measured, adds the baseline. If times are predicted and all yielded configurations are wrong,
        yields more configurations, one at a time, until a configuration is not wrong.
        """
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
