"""How the agent and its NVML child talk: four bytes of length, big endian, and a JSON object."""

import json
from typing import Final

LENGTH_BYTES: Final = 4


def framed(body: object) -> bytes:
    """One message as it goes over the channel."""
    text = json.dumps(body, separators=(",", ":")).encode()
    return len(text).to_bytes(LENGTH_BYTES, "big") + text
