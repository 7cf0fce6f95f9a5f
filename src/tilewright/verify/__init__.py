"""Checks whether a kernel is correct: an engine runs the kernel on hostile cases, and NumPy judges the outputs.

An `engine.Engine` runs the kernel on padded buffers (`images`). A `cases.Case` specifies the shape and the data.
`examining` judges one case, and `check.check` combines all cases into a verdict.
"""
