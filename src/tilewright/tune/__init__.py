"""`tilewright tune`: finds the best configuration of a task for each workload."""
