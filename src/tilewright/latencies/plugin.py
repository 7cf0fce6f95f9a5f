"""Declares the options of `pytest --tilewright`, which shows, stores and compares the latency records of tests.

pytest imports this module in every run if Tilewright is installed. So all other code is in `session.py`, which is
imported only with `--tilewright`. PYTEST_DONT_REWRITE tells pytest not to rewrite assertions here.
"""

from __future__ import annotations

import pytest

NAME = "tilewright-latencies"
OPTIONS = ("baseline", "save", "fail_slower", "machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilewright", "latencies (Tilewright)")
    show = "Show the latency records that tests leave with record_property('benchmark', …)."
    group.addoption("--tilewright", action="store_true", help=show)
    group.addoption("--tilewright-baseline", metavar="FILE", help="Compare with the runs in FILE, by medians of runs.")
    group.addoption("--tilewright-save", metavar="FILE", help="Append this run to FILE, which is created if missing.")
    slower = "Exit with 1 if a test is shown to be more than this slower than the baseline; 2 finds a slowdown of 5."
    group.addoption("--tilewright-fail-slower", metavar="PERCENT", type=float, help=slower)
    machine = "Name of this machine; runs on different machines are never compared.  [default: its host name]"
    group.addoption("--tilewright-machine", metavar="NAME", help=machine)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # this is a worker of pytest-xdist; the controller gets the reports and prints
    given = [name for name in OPTIONS if config.getoption(f"tilewright_{name}") is not None]
    if not config.getoption("tilewright"):
        if given:
            raise pytest.UsageError(f"--tilewright-{given[0].replace('_', '-')} needs --tilewright")
        return
    from tilewright.errors import TilewrightError
    from tilewright.latencies.session import LatencySession

    try:
        config.pluginmanager.register(LatencySession(config), NAME)
    except TilewrightError as error:
        raise pytest.UsageError(str(error)) from None
