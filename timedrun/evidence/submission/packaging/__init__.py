"""Packages in MLPerf's layout."""
