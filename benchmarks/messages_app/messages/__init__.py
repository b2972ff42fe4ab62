"""Models sent to sites that do nothing."""
