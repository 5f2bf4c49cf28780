"""Between the deciding core and the world: one `NodeAgent` per node, one `AgentProcess` for all.

Level-triggered: a document, an exit, a timer or a sample only says which attempts to look at
again; `core.stepping.next_step` says what to do, and `actions` does it.
"""
