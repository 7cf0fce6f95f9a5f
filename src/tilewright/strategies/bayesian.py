"""Defines the strategy of Bayesian optimisation, for large spaces. It needs the extra ``search`` (optuna)."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from tilewright.errors import MachineError
from tilewright.records import Candidate, Configuration, Value
from tilewright.strategies.base import Batch, Outcomes, Search, SearchSpace, Strategy, best_us, unseen
from tilewright.strategies.estimate import spread

FIRST = 0.25
"""The share of the configurations that the first batch has."""
BATCHES = 8
"""The number of batches after the first."""
ASKED = 20
"""How many proposals of optuna are tried for each configuration, because a proposal may be forbidden or known."""


class Bayesian(Strategy):
    """Compiles a spread batch, then batches that optuna's sampler `TPESampler` proposes."""

    name = "bayesian"

    def search(self, space: SearchSpace) -> Search:
        """Raises MachineError if optuna is not installed."""
        try:
            optuna = import_module("optuna")
        except ImportError:
            raise MachineError("strategy 'bayesian' needs optuna; pip install 'tilewright[search]'") from None
        outcomes: Outcomes = yield spread(space.pool, max(1, round(FIRST * space.most)), space.seed)
        size = max(1, (space.most - len(outcomes)) // BATCHES)
        sampler = _Sampler(space, optuna)
        sampler.tell(outcomes)
        while (left := space.most - len(outcomes)) > 0:
            batch = sampler.ask(outcomes, min(size, left))
            if not batch:
                return
            new = yield batch
            sampler.tell(new)
            outcomes += new


class _Sampler:
    """optuna's study of one workload. It minimises the time."""

    def __init__(self, space: SearchSpace, optuna: Any) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.optuna = space, optuna
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=space.seed, multivariate=True, group=True, constant_liar=True)
        self.study: Any = optuna.create_study(sampler=sampler)
        self.values = {name: _spelled(space.space.known_values(name)) for name in space.space.knobs}
        choice = optuna.distributions.CategoricalDistribution
        self.knobs = {name: choice(tuple(values)) for name, values in self.values.items()}
        self.trials: dict[Configuration, Any] = {}

    def ask(self, outcomes: Outcomes, count: int) -> Batch:
        """Returns ``count`` new configurations: proposals, and others of the pool if too few are new and allowed."""
        seen, found = {each.configuration for each in outcomes}, dict[Configuration, None]()
        if self.space.pool_is_all:
            count = len(unseen(self.space.pool, seen, count))
        for _ in range(ASKED * count):
            if len(found) == count:
                break
            trial = self.study.ask()
            config = self._suggested(trial)
            if config in seen or config in found or not self.space.allows(config):
                self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            else:
                found[config], self.trials[config] = None, trial
        return (*found, *unseen(self.space.pool, (*seen, *found), count - len(found)))

    def _suggested(self, trial: Any) -> Configuration:
        """Asks for the knobs one by one, because which knobs there are may depend on the first."""
        chosen: dict[str, Value] = {}
        while missing := [name for name in self.space.space.knobs_of(chosen) if name not in chosen]:
            for name in missing:
                chosen[name] = self.values[name][trial.suggest_categorical(name, tuple(self.values[name]))]
        return Configuration.of(chosen)

    def tell(self, outcomes: Outcomes) -> None:
        slowest = max((us for each in outcomes if (us := best_us(each))), default=1.0)
        for outcome in outcomes:
            us = best_us(outcome) or 2 * slowest
            if outcome.configuration in self.trials:
                self.study.tell(self.trials[outcome.configuration], us)
            elif all(str(value) in self.values[name] for name, value in outcome.configuration.items()):
                self.study.add_trial(self._known(outcome, us))

    def _known(self, outcome: Candidate, us: float) -> Any:
        params = {name: str(value) for name, value in outcome.configuration.items()}
        knobs = {name: self.knobs[name] for name in params}
        return self.optuna.trial.create_trial(params=params, distributions=knobs, value=us)


def _spelled(values: tuple[Value, ...]) -> dict[str, Value]:
    """Maps the text of each value to the value, because optuna's choices must have a fixed order and be hashable."""
    return {str(value): value for value in values}


STRATEGY = Bayesian()
