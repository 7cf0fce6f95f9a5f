"""A command that runs steps in an allocation, with a record of its own of what is answered. Tests may kill it.

python -m tests.slurm.client FOLDER STEPS LINGER
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.slurm.worker import step

from tilewright.errors import TilewrightError
from tilewright.executors.slurm import Slurm
from tilewright.remote import job_spec
from tilewright.worker.messages import PrepareInputs

WORKER = str(Path(__file__).with_name("worker.py"))
STEP_MILLISECONDS, FROZEN_SECONDS = 150, 4.0


def main() -> int:
    folder, steps, linger = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    answered = folder / "answered"
    executor = Slurm(job_spec.read(), (sys.executable, WORKER, str(folder)), linger, FROZEN_SECONDS)
    executor.say = lambda remark: print(f"note: {remark}", file=sys.stderr, flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        with executor:
            executor.open(str(folder / "task" / "ops.py"))
            for name in (f"s{number}" for number in range(steps)):
                while name not in (answered.read_text().split() if answered.exists() else []):
                    executor.run(PrepareInputs("inputs", 0), silence=20.0)
                    if executor.run(step(name, STEP_MILLISECONDS), silence=3.0).status == "PASSED":
                        with answered.open("a") as file:
                            file.write(f"{name}\n")
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
