"""The task that a user writes: a kernel, its tensors, reference, launch, space and workloads."""
