"""The Docker runtime: everything that speaks to a Docker Engine, and nothing else does.

`engine.DockerEngine` is one connection to one engine for one yard; `runtime.DockerRuntime` is one
node on it. Calls that answer at once go through the Docker SDK in worker threads (`client`); what
streams (events, logs, pulls) is read by the event loop itself (`streams`), so that hundreds of
followed logs cost no thread and end at once when they are cancelled.
"""
