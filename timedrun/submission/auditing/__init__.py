"""Audits of published rounds."""
