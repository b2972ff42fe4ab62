"""The report of a run: one page to read, its tables for a paper, and every figure with its numbers."""
