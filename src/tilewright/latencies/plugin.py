"""`pytest --tilewright`: shows and stores the latency records of tests, and compares them with earlier runs.

pytest imports this module in every run where Tilewright is installed, so it only declares the options. Their work is
done in `session.py`, which is imported when `--tilewright` is given. It asserts nothing (PYTEST_DONT_REWRITE).
"""

from __future__ import annotations

import pytest

NAME = "tilewright-latencies"
OPTIONS = ("baseline", "save", "fail_slower", "machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, as `pytest --help` shows them."""
    group = parser.getgroup("tilewright", "latencies (Tilewright)")
    group.addoption(
        "--tilewright",
        action="store_true",
        help="Show the latency records that tests leave with record_property('benchmark', …).",
    )
    group.addoption("--tilewright-baseline", metavar="FILE", help="Compare with the runs in FILE, by medians of runs.")
    group.addoption("--tilewright-save", metavar="FILE", help="Append this run to FILE, which is made if needed.")
    group.addoption(
        "--tilewright-fail-slower",
        metavar="PERCENT",
        type=float,
        help="Exit with 1 where a test is slower than the baseline by more, with its whole interval.",
    )
    group.addoption(
        "--tilewright-machine",
        metavar="NAME",
        help="What to call this machine; runs of different ones are never compared.  [default: its host name]",
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist: the reports go to the controller, which prints
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
