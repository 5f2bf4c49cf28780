"""Writes docs/reference from the code, so that the pages cannot drift; `--check` only compares.

python scripts/generate_reference.py [--check]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from reference import bus, cli, job, reasons, settings, tenant

from gpuyard.model.job import JobSpec

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"


def job_schema() -> str:
    """The JSON Schema of a job."""
    return json.dumps(JobSpec.model_json_schema(), indent=2, sort_keys=True) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "api.md": bus.api_page,
    "cli.md": cli.cli_page,
    "end-reasons.md": reasons.end_reasons_page,
    "events.md": bus.events_page,
    "exit-codes.md": reasons.exit_codes_page,
    "job.md": job.job_page,
    "job.schema.json": job_schema,
    "node-reasons.md": reasons.node_reasons_page,
    "settings.md": settings.settings_page,
    "tenant.md": tenant.tenant_page,
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
