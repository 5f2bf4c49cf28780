"""Decides what a node does next. No I/O, no clock, no randomness.

`memory` is all that is remembered of a node, an `attempt` each of its parts; `document` is what is
wanted, `containers` what a runtime shows. `intake` takes in what the leader and the runtime say,
`stepping` then gives each attempt the next of the `steps`: with `stopping` (why it is stopped),
`fence` (how long it may go on in silence), `policy` (what the host allows), `launch` (what a
runtime is to start) and `judge` (why it ended).
`report` is what the beat tells of it, with its `usage`; `times` reads and writes times.
"""
