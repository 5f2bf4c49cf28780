"""What a restore says of itself."""

from gpuyard.cli.restore import told_of
from gpuyard.client.restore import Restored


def told(documents: int, kept: int) -> str:
    done = Restored("dz1jz7", generation=1, documents=documents, kept=kept, deposed=False)
    return told_of(done)


def test_the_counts_are_told_in_their_number() -> None:
    assert told(3, 0) == "yard dz1jz7 restored: 3 documents"
    newer = "newer on the bus or had expired"
    assert told(1, 119) == f"yard dz1jz7 restored: 1 document; 119 documents were {newer}"
    assert told(119, 1) == f"yard dz1jz7 restored: 119 documents; 1 document was {newer}"
