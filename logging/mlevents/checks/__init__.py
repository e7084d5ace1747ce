"""Strict checks of logs and sets."""
