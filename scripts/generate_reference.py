"""Writes docs/reference from the code, so that the pages cannot drift; `--check` only compares.

python scripts/generate_reference.py [--check]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuyard.model.job import JobSpec
from gpuyard.model.node import NODE_REASONS
from gpuyard.model.reasons import REASONS

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
_RETRY_WORDS: Final = {
    "never": "never",
    "if_asked": "if `retries` ask for it",
    "elsewhere": "free on other nodes while no container started, else if `retries` ask for it",
}


def end_reasons() -> str:
    """One row per end reason: owner, retry class, exit code."""
    lines = [
        "# End reasons",
        "",
        "Why a job is over. The list is closed; a job's `reason` is one of these.",
        "",
        "| reason | means | whose matter | tried again | exit code of `gpuyard run` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for reason, row in REASONS.items():
        code = "the container's own" if row.exit_code is None else str(row.exit_code)
        retry = _RETRY_WORDS[row.retry]
        lines.append(f"| `{reason}` | {row.text} | {row.owner} | {retry} | {code} |")
    return "\n".join([*lines, ""])


def node_reasons() -> str:
    """One row per reason that keeps work off a node or a GPU."""
    lines = [
        "# Node reasons",
        "",
        "Why a node, or one GPU of it, takes no work; the `code` in `gpuyard nodes --json`.",
        "",
        "| code | means |",
        "| --- | --- |",
    ]
    lines += [f"| `{code}` | {text} |" for code, text in NODE_REASONS.items()]
    return "\n".join([*lines, ""])


def job_schema() -> str:
    """The JSON Schema of a job."""
    return json.dumps(JobSpec.model_json_schema(), indent=2, sort_keys=True) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "end-reasons.md": end_reasons,
    "node-reasons.md": node_reasons,
    "job.schema.json": job_schema,
}


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        page, path = make(), FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == page:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8")
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run python scripts/generate_reference.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
