"""The daemon of one Docker host: runs the containers that its node is assigned.

What happens next is decided in `core`; `loop` has one node in hand and takes its steps. It speaks
to the bus through the `link`, remembers in the `journal`, starts containers by a `runtime`, which
is `docker_runtime`, `process_runtime` or `simulated_runtime`, reads GPUs from `gpus` and ships
output by `logs`. The `keeper` is a process of its own, which ends jobs when nothing else can.
`settings` say how the agent is configured.
"""
