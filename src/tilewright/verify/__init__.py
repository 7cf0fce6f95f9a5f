"""Whether a kernel is right: hostile cases, run by an engine, judged by NumPy (trust.md 1 to 15, 20, 21).

An `engine.Engine` runs the kernel on memory `images`; `cases` says on which shapes and data,
`examining` judges one case, `check.check` takes the whole to a verdict.
"""
