"""Following a run in other tools, off by default: what its events and results tell, written by one module a tool."""
