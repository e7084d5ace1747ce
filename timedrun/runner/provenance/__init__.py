"""System, source and data of a result."""
