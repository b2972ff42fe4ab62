"""Makes the helpers in this folder importable from the tests below it: pytest puts a conftest's folder on the path."""
