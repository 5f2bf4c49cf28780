"""Runs attempts as plain processes of this host: no engine, no image, no isolation.

Each attempt has a folder and a tiny shell (`shim`) that starts the command in a session of its own
and writes its exit code down, so that an agent that was killed finds everything again. Memory and
CPU limits are not enforced, and a process that leaves its session is out of reach.
"""

from gpuyard_agent.process_runtime.runtime import ProcessRuntime

__all__ = ["ProcessRuntime"]
