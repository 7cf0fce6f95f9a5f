"""CuTe DSL: traces kernels in this process, compiles them in another process, and launches them by their host code."""

from tilewright.languages.cutedsl.cutedsl import CuteDsl

LANGUAGE = CuteDsl()
