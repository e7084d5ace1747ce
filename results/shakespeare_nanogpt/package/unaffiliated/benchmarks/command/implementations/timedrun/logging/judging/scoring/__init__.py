"""Scores of result sets: time to train, its parts, its cost, and the runs that count."""
