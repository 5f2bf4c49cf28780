"""The daemon that packs jobs onto the fleet's GPUs and holds tenants to their quotas.

Everything is decided in `core`; around it each module has one task with the world.

The process
    `daemon` connects, follows and stands for election with the `settings` and the `clock`; it is a
    `standby`, which follows by `follower`, until `leader` has the lease, then `leading` starts the
    rest. `presence` tells who is there, `deposed` whether somebody else leads, `bus_check` whether
    the bus is fit, `yard_memory` which yard it had; `racing` waits for the first of two works.
A turn
    `inbox` holds what arrives, `loop` applies, plans and commits it, `turn_writes` are the
    documents of it and `out_records` its messages, `store` writes them; then `telling` answers and
    `outbox` publishes. `fast_codec` packs.
What arrives
    `submissions` reads jobs, `beat_queue`, `beat_door` and `beat_intake` beats, `look_ups` finds
    what is kept of ended jobs.
Requests
    `calls` are answered by `services` and `operator_services`, which reach the state through the
    `desk`: `reads`, `job_list`, `yard_counts` are what readers are shown, `stored_logs` the output,
    `pages` cuts lists.
Beside it
    `housekeeping`, `storage_watch`, `ended_jobs` and `log_ledger` keep what is stored in order;
    `record` keeps decisions, `simulate` makes them again.
"""
