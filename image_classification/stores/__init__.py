"""Prepared images on disk: the manifest, the index of a split, and the formats."""
