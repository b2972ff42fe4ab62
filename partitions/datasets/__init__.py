"""Data sets, one file each: the provider's layout in, records out."""
