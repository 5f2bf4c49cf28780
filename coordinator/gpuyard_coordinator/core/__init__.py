"""Decides what the yard does: state, events in, effects out. No I/O, no clock, no randomness."""
