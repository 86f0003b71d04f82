"""Other engines, each in a process of its own, under the same workloads."""
