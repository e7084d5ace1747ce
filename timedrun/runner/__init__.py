"""One timed run: its config, its benchmark, its process, ranks and clock."""
