"""`gpuyard simulate`: recorded decisions made again, and workloads played in virtual time.

Everything that decides here is the coordinator's own core. `replay` makes recorded plans anew and
compares; `day` plays a workload, which `workloads` reads from a record, a trace file or a public
list, under any of `policies`; `report` and `plot` tell what came of it; `command` is what the
command line runs.
"""
