"""A run as a process: launch environment, signals, progress, load and verdict. Imports no torch."""
