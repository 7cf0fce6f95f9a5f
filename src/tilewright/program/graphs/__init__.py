"""CUDA graphs of a program's step: what prevents the capture, the changes that capture it, and the trial on a GPU."""
