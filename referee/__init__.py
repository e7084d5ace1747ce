"""Referee of training scripts by others: run isolated, timed from outside, questioned about text they never saw."""
