"""`tilewright tune`: from a task to the best configuration of each workload."""
