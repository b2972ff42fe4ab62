"""What published studies report, to set a run beside it: their tables, and the joining with ``results.csv``."""
