"""Faults of a given length, at the length that the tests have time for or in full.

    python -m tests.system.drills leader_frozen --seconds 30
    python -m tests.system.drills bus_down --seconds 600
    python -m tests.system.drills node_away

Each drill is a function of a running yard, which asserts what must hold and returns its figures.
"""
