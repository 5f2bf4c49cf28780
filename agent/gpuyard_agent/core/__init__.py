"""Decides what a node does next. No I/O, no clock, no randomness."""
