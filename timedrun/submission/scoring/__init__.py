"""Scores of result sets."""
