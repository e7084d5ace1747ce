"""Verdicts on logs, result sets, packages and rounds."""
