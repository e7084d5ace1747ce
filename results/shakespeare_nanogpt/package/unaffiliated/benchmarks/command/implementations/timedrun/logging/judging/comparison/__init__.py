"""Result sets against each other: speed-up, its interval, curves of quality against time."""
