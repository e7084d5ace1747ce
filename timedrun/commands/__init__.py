"""What each `timedrun` verb does, apart from reading its command line."""
