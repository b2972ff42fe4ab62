"""Membership attacks that compare a model with shadow or reference models: arrays in, values out, no files."""
