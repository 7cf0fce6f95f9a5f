"""What a person writes: a kernel, its tensors, its reference, its launch, its space and its workloads."""
