"""Answers one query of nvMatmulHeuristics as JSON, as the child process of `heuristics`.

This script imports nothing of Tilewright, and no module imports this script.
"""

import json
import sys


def main() -> None:
    import nvMatmulHeuristics as model  # type: ignore[import-not-found,import-untyped,unused-ignore]

    query = json.loads(sys.argv[1])
    interface = model.NvMatmulHeuristicsInterfaceEx(
        backend=model.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=model.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=model.NvMatmulHeuristicsNvidiaGpu[query["gpu"]],
    )
    layout = model.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
    problem = interface.makeNvMatmulHeuristicsProblem(query["m"], query["n"], query["k"], layout)
    answers = interface.get(problem, query["count"], precision=query["precision"])
    print(json.dumps([_plain(each) for each in answers]))


def _plain(answer: "dict[str, object]") -> "dict[str, object]":
    kernel = answer["kernel"]
    return {
        "tile": [kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k],  # type: ignore[attr-defined]
        "cluster": [kernel.cluster_m, kernel.cluster_n],  # type: ignore[attr-defined]
        "split_k": kernel.split_k,  # type: ignore[attr-defined]
        "seconds": answer["runtime"],
    }


if __name__ == "__main__":
    main()
