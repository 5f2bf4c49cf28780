"""The only door to NATS: connections, streams, batches and consumers in the yard's own terms.

Nothing of the client library passes through it, exceptions included: callers see `Unavailable`,
`BusTooOld`, `StreamRefusal` and the protocol errors.

::

    bus = await connect(url, name="gpuyard-coordinator", inbox_prefix=subjects.COORDINATOR_INBOX)
    bus.app, bus.tenants, bus.agents    # Handle: publish, subscribe, serve, request, respond
    bus.jetstream                       # JetStream: publish, publish_batch, last, read_page
    await fit_streams(bus.jetstream)
    PullLoop(bus.jetstream, stream=..., durable=..., deliver=...)
    Tail(bus.jetstream, stream=..., subject=..., deliver=...)
"""

from gpuyard.bus.connection import Bus, connect
from gpuyard.bus.dialling import patience_s, redact
from gpuyard.bus.fitting import Fitting, fit_streams
from gpuyard.bus.handle import Handle, Service
from gpuyard.bus.jetstream import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, JetStream
from gpuyard.bus.link import Subscription
from gpuyard.bus.message import Message
from gpuyard.bus.publication import Page, PubAck, Publication, Stored, StreamState
from gpuyard.bus.pull import Delivery, PullLoop
from gpuyard.bus.refusals import (
    BusUnfit,
    NoResponders,
    NotFound,
    Stale,
    StorageFull,
    StreamRefusal,
    Undecided,
)
from gpuyard.bus.snapshot import Cut, last_values, read_cut, read_last_values
from gpuyard.bus.streams import Drift, Sizes, ensure_streams, stream_configs
from gpuyard.bus.tail import Tail

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_MESSAGES",
    "Bus",
    "BusUnfit",
    "Cut",
    "Delivery",
    "Drift",
    "Fitting",
    "Handle",
    "JetStream",
    "Message",
    "NoResponders",
    "NotFound",
    "Page",
    "PubAck",
    "Publication",
    "PullLoop",
    "Service",
    "Sizes",
    "Stale",
    "StorageFull",
    "Stored",
    "StreamRefusal",
    "StreamState",
    "Subscription",
    "Tail",
    "Undecided",
    "connect",
    "ensure_streams",
    "fit_streams",
    "last_values",
    "patience_s",
    "read_cut",
    "read_last_values",
    "redact",
    "stream_configs",
]
