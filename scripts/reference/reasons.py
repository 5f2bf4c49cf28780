"""End reasons, node reasons and exit codes."""

from typing import Final

from gpuyard.cli import ending
from gpuyard.model.node import NODE_REASONS
from gpuyard.model.reasons import REASONS, YARD_FAILED
from reference.markdown import code, page, table

_RETRY_WORDS: Final = {
    "never": "never",
    "if_asked": "if `retries` ask for it",
    "elsewhere": "free on other nodes while no container started, else if `retries` ask for it",
}
_OF_COMMANDS: Final = (
    ("0", "done; for `run`, `wait` and `submit --wait`: the job succeeded"),
    (
        "1",
        (
            "the answer is no: refused by the yard, an unknown id, `wait` for a job that "
            "ended without a code"
        ),
    ),
    (str(ending.USAGE), f"usage: flags, files, settings (`run`: {YARD_FAILED}, as docker)"),
    (str(ending.UNAVAILABLE), "the bus cannot be reached, no coordinator answers, a timeout"),
    (str(ending.NOT_ALLOWED), "not allowed"),
    (str(ending.INTERRUPTED), "Ctrl-C"),
    (str(ending.CLOSED_PIPE), "nobody reads the output any more, as in `| head`"),
)
_OF_JOBS: Final = (
    ("124", "`time_limit`, `deadline_exceeded`, or the command's own `--timeout`"),
    (str(ending.YARD_FAILED), "the yard's failure: refused, image, node, GPU"),
    ("126, 127", "as docker: the command cannot be run, is not there"),
    ("130", "Ctrl-C twice"),
    ("137", "killed: out of memory, or SIGKILL from anywhere"),
    ("143", "cancelled, or the yard was stopped"),
    ("128+n", "ended by signal n"),
)
_OF_DAEMONS: Final = (
    ("0", "stopped on request"),
    ("1", "refused, for instance the folder is in use"),
    ("2", "usage or settings"),
    ("3", "the bus cannot be used"),
)


def end_reasons_page() -> str:
    """One row per end reason: owner, retry class, exit code."""
    return page(
        "End reasons",
        "Why a job is over. The list is closed; a job's `reason` is one of these.",
        table(
            ["reason", "means", "whose matter", "tried again", "exit code of `gpuyard run`"],
            (
                (
                    code(reason),
                    row.text,
                    row.owner,
                    _RETRY_WORDS[row.retry],
                    "the container's own" if row.exit_code is None else str(row.exit_code),
                )
                for reason, row in REASONS.items()
            ),
        ),
    )


def node_reasons_page() -> str:
    """One row per reason that keeps work off a node or a GPU."""
    return page(
        "Node reasons",
        "Why a node, or one GPU of it, takes no work; the `code` in `gpuyard nodes --json`.",
        table(["code", "means"], ((code(name), text) for name, text in NODE_REASONS.items())),
    )


def exit_codes_page() -> str:
    return page(
        "Exit codes",
        "## gpuyard",
        table(["code", "when"], _OF_COMMANDS),
        "## run, wait, submit --wait",
        "The container's own code; of several jobs the largest. In place of it:",
        table(["code", "when"], _OF_JOBS),
        "By [end reason](end-reasons.md):",
        table(["code", "reasons"], _reasons_by_code()),
        "## gpuyard-agent, gpuyard-coordinator",
        table(["code", "when"], _OF_DAEMONS),
    )


def _reasons_by_code() -> list[tuple[str, str]]:
    by_code: dict[int, list[str]] = {}
    for reason, row in REASONS.items():
        if row.exit_code is not None:
            by_code.setdefault(row.exit_code, []).append(code(reason))
    return [(str(number), ", ".join(names)) for number, names in sorted(by_code.items())]
