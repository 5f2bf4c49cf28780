"""Faults at random on a whole yard of real processes, and a checker of what came of it.

`python -m tests.system.chaos --minutes 3 --seed 1` (`make chaos`) runs one schedule; the same seed,
length and size give the same faults and the same jobs again. Everything that was seen goes into a
history file, which `--check FILE` judges again without a yard.

A newcomer's order: `history` (what is recorded), `checker` (what must hold of it), `schedule`
(which faults), `yard` and `faults` (how they are done), `load` and `witness` (who records), `run`.
"""
