"""Counts the winners that many processes and threads lose if all store theirs at the same time.

    python bench/store_writers.py [--processes 16] [--threads 16] [--each 1] [--out FILE.json]

Each thread of each process stores its own winners, and one that all of them store with different values. Afterwards
every own winner must be in the store, and every `put` of the common one must have returned what is in the store.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from common import made_here, write
from faults import winner

from tilewright.runtime.store.winners import Winners

COMMON = "the common one"


def process(number: int, threads: int, each: int, folder: str, start: Barrier, results: Queue[Any]) -> None:
    os.environ["TILEWRIGHT_TUNED"] = folder
    said: list[str] = []
    warnings.showwarning = lambda message, *_: said.append(str(message))
    found: list[str] = []

    def work(thread: int) -> None:
        for count in range(each):
            Winners().put(winner(f"{number} {thread} {count}"))
        found.append(Winners().put(replace(winner(COMMON), label=f"{number} {thread}")).label)

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    start.wait()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    results.put((found, said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    context = get_context("spawn")
    start, results = context.Barrier(asked.processes), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        given = (asked.threads, asked.each, folder, start, results)
        processes = [context.Process(target=process, args=(number, *given)) for number in range(asked.processes)]
        began = time.monotonic()
        for one in processes:
            one.start()
        answers = [results.get() for _ in processes]
        for one in processes:
            one.join()
        seconds = time.monotonic() - began
        store = Winners(Path(folder) / "tuned.db", strict=True)
        names = {str(one.parts["name"]) for one in store.each()}
        common = store.get(winner(COMMON).key)
    writers, expected = asked.processes * asked.threads, asked.processes * asked.threads * asked.each
    different = sum(label != (common and common.label) for found, _ in answers for label in found)
    found = {
        "writers": writers, "puts": expected + writers, "kept": len(names - {COMMON}), "of": expected,
        "puts of the common one that returned another": different,
        "warnings": sorted({text for _, said in answers for text in said}), "seconds": seconds,
    }  # fmt: skip
    print(found)
    write(asked.out and str(asked.out), {**made_here(), "found": found})


if __name__ == "__main__":
    main()
