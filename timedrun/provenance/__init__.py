"""The system, source and data that a result came from."""
