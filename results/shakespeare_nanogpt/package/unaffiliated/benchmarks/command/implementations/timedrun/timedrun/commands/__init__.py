"""Verbs of the `timedrun` command, one module each, and their options."""
