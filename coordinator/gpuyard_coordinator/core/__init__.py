"""Decides what the yard does: state, events in, effects out. No I/O, no clock, no randomness.

What there is
    `state` has the nouns, `shapes` what placing a job depends on, `cluster` all of the yard;
    `events` and `effects` are what comes in and goes out. `documents`, `stored_jobs`: how it is
    stored.
What changes it
    `apply` hands each event on: `submitting`, `holds`, `operations` (nodes), `tenancy`, `beats`.
    `lifecycle` moves a job and ends it, `retries` says what follows, `ledger` keeps the books, and
    `follow_ups` carries on what one end leads to in others.
Jobs that are not plain ones
    `arrays` and `handing_out`; `gangs`, with `gang_places`, `gang_ports` and `gang_room`;
    `dependencies`; `times` (start and deadline); `waiting` for anything but room.
Nodes and images that fail
    `fencing` (silent nodes), `setaside`, `images`.
Where a job goes
    `plan` is one cycle: `quota`, then `ordering` by `fairshare`, then the placer in `packing`, for
    whoever has no place `reserving`. Nodes are judged by `filters`, `selection` (labels),
    `instances` (MIG) and `linking`. `history` is what tenants held, `mix` what is submitted,
    `repricing` and `headroom` what follows from it, `growth` who is asked again.
Who comes first and cannot start
    `reservations` are kept by `reserving`: by `backfill` where ends are expected, by `preemption`
    where others are stopped; `clearing` tries how many ends it takes.
Why a job waits
    `why` is the whole answer: `explain` counts causes, `changes` finds what would start the job
    (`loosening`, `overtaking`, `ends`), `forecast` when it starts, `holdups` what holds it up. For
    lists, `lineup` tells its place and `roster` the pages.
Another leader
    `recovery` reads what is stored and follows it, `takeover` begins, `stored_history` and
    `recently_done` are what is kept of before; after a restore `adoption` and `gang_adoption` hear
    the nodes out.
Small tools
    `deadlines` (what is due), `moments` (times of records), `conditions` (of nodes, for records),
    `plausible` (numbers that no machine has).
"""
