"""Atomic files, folder locks, result files and worker processes."""
