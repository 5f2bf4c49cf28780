"""The commands of docs/fleet.md, as a reader runs them on a host that reaches no package index."""

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "fleet.md"
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^## (.*)$", re.MULTILINE)


def blocks(heading: str) -> list[str]:
    """The shell blocks under a heading of the page, with pip told to use the folder `dist`."""
    parts = _HEADING.split(PAGE.read_text())
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [_from_folder(block) for block in _BLOCK.findall(sections[heading])]


def _from_folder(block: str) -> str:
    block = block.replace("pip install", "pip install --quiet --no-index --find-links /root/dist")
    return block.replace("'./gpuyard-", "'/root/dist/gpuyard-")
