"""Checks before a run, and a dry run of its logs and package."""
