"""P-22, last row: what limits the kernel in the end, and what became of the changes that would ease it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.hardware.diagnosis import Diagnosis, ResourceLimit
from tilewright.ledger.records import Iteration, IterationStatus, Metrics
from tilewright.optimize.ending import limit_of, outcome_of
from tilewright.playbook.entries.exp2 import ENTRY as EXP2
from tilewright.playbook.entries.persistent import ENTRY as PERSISTENT

LIMITED = Diagnosis(0.5, "machine code and measured time", ResourceLimit("last wave", 12.0, "140 CTAs in 132 places"))
FREE = Diagnosis(0.9, "machine code and measured time", ResourceLimit("memory bandwidth", 80.0, "88 µs"))


def tried(status: IterationStatus, reason: str) -> Iteration:
    return Iteration(
        n=1, optimization="persistent", entry="persistent", correctness="PASS", status=status, reason=reason, value="4"
    )


def test_a_change_was_kept_reverted_or_failed_for_a_reason() -> None:
    assert outcome_of(PERSISTENT.about, [tried("revert", "2 % slower")], (), False) == "reverted (4): 2 % slower"
    both = [tried("revert", "2 % slower"), tried("keep", "9 % faster")]
    assert outcome_of(PERSISTENT.about, both, (), True) == "kept (4): 9 % faster"


def test_a_change_that_left_no_variant_says_why() -> None:
    ruled_out = ("exp2: exp of x: lossy", "persistent scheduling: one block an item: kernel returns from within a loop")
    said = outcome_of(PERSISTENT.about, (), ruled_out, False)
    assert said == "not possible: one block an item: kernel returns from within a loop"


def test_a_change_without_a_place_says_what_it_is_for() -> None:
    assert outcome_of(PERSISTENT.about, (), (), False) == f"does not apply here; it is for: {PERSISTENT.about.when}"
    assert outcome_of(EXP2.about, (), (), False, "it has no loop") == "does not apply here: it has no loop"
    assert outcome_of(PERSISTENT.about, (), (), True) == "not tried: the run ended before"
    assert "--allow-lossy" in outcome_of(replace(EXP2.about, risk="lossy"), (), (), False)


def test_the_workload_furthest_from_its_speed_of_light_is_told_of() -> None:
    metrics = [Metrics(workload="near", diagnosis=FREE), Metrics(workload="far", diagnosis=LIMITED)]
    assert limit_of(metrics) == "far, at 50% of the speed of light, is limited by last wave"
    assert limit_of(metrics[:1]) == limit_of([Metrics(workload="old")]) == ""
