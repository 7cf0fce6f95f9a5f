"""Where the time of a program goes on its GPUs, read from a trace of torch.profiler (Kineto)."""
