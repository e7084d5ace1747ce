"""Benchmarks of data loading and of training steps."""
