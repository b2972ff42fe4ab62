"""Task families: a model, a loss and per-record scores each. Only here may classification be assumed."""
