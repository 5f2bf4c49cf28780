"""What operations answer besides jobs and nodes, as typed plain dictionaries.

Keys are always present; unknown is None. They are what `--json` prints.
"""

from typing import TYPE_CHECKING, Any

from gpuyard._typing import TypedDict

if TYPE_CHECKING:
    # Not at run time: the views load the validation library, and a client needs none.
    from gpuyard.views.tenants import TenantView
    from gpuyard.views.why import WhyView


class DryRun(TypedDict):
    """What would become of a job if it were submitted now; nothing was stored."""

    fits: bool
    node: str | None
    nodes: list[str]
    """Of a gang's members; otherwise that node alone."""
    gpus: list[str]
    """UUIDs."""
    verdict: dict[str, Any] | None
    notes: list[str]
    """What the yard would fill in, cap or give it, in words."""
    why: "WhyView"


class Applied(TypedDict):
    """What applying a tenant's document did, or with `dry_run` would do."""

    tenant: "TenantView"
    changed: bool
    before: "TenantView | None"


class Forgotten(TypedDict):
    node: Any
    warning: str | None
    """What may still run there, where that cannot be known."""
