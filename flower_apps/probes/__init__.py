"""Further measurements of a model, each a table of its own beside the scorecard. A module here binds ``PROBE``."""
