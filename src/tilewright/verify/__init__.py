"""Whether a kernel is right: hostile cases, run by an engine, judged by NumPy.

An `engine.Engine` runs the kernel on memory `images`; `cases` says on which shapes and data,
`examining` judges one case, `check.check` takes the whole to a verdict.
"""
