"""Strict checks of a whole submission folder, most of which no tool of MLCommons makes."""
