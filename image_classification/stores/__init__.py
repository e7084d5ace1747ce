"""Prepared images on disk: their manifest, and readers of each format."""
