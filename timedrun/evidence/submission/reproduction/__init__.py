"""Reproduction of claimed scores and recorded runs."""
