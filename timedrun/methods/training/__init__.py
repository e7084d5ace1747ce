"""Optimizers, schedules, losses, precision and sampling."""
