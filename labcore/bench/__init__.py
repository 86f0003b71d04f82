"""Measuring: clocks, the ceilings of this machine, workloads, peers side by side, quality."""
