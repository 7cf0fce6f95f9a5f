"""Shows on what a program spends its time on the GPUs, from a trace of torch.profiler (Kineto)."""
