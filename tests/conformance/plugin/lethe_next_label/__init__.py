"""A third-party method for Lethe: teach the forget records the next class's label."""
