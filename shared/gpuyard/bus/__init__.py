"""The only door to NATS: connections, streams, batches and consumers in the yard's own terms.

Nothing of the client library passes through it, exceptions included: callers see `Unavailable`,
`BusTooOld`, `StreamRefusal` and the protocol errors.

::

    bus = await connect(url, name="gpuyard-coordinator", inbox_prefix=subjects.COORDINATOR_INBOX)
    bus.app, bus.tenants, bus.agents    # Handle: publish, subscribe, serve, request, respond
    bus.jetstream                       # JetStream: publish, publish_batch, last, read_page
    await ensure_streams(bus.jetstream)
    PullLoop(bus.jetstream, stream=..., durable=..., deliver=...)
"""

from gpuyard.bus.connection import Bus, connect
from gpuyard.bus.dialling import redact
from gpuyard.bus.handle import Handle, Message
from gpuyard.bus.jetstream import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, JetStream
from gpuyard.bus.link import Subscription
from gpuyard.bus.publication import Page, PubAck, Publication, Stored, StreamState
from gpuyard.bus.pull import Delivery, PullLoop
from gpuyard.bus.refusals import NoResponders, NotFound, Stale, StreamRefusal, Undecided
from gpuyard.bus.snapshot import read_last_values
from gpuyard.bus.streams import Sizes, ensure_streams, stream_configs

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_MESSAGES",
    "Bus",
    "Delivery",
    "Handle",
    "JetStream",
    "Message",
    "NoResponders",
    "NotFound",
    "Page",
    "PubAck",
    "Publication",
    "PullLoop",
    "Sizes",
    "Stale",
    "Stored",
    "StreamRefusal",
    "StreamState",
    "Subscription",
    "Undecided",
    "connect",
    "ensure_streams",
    "read_last_values",
    "redact",
    "stream_configs",
]
