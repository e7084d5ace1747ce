"""Folders of benchmarks, cards of methods, and worker processes."""
