"""Distributed runs: launch environment, rendezvous, process group, watchdog, checks across ranks, torchrun's agent."""
