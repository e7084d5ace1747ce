"""Strict checks of logs and of sets of logs."""
