"""Names and ids. Whatever fails here never becomes part of a subject."""

import hashlib
import re
from typing import Final, NewType

Node = NewType("Node", str)
User = NewType("User", str)
JobId = NewType("JobId", str)
JobKey = tuple[str, str]
"""(tenant, job): the only unique key of a job."""

NAME_PATTERN: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
USER_PATTERN: Final = r"[a-z0-9_-]{1,64}"
JOB_ID_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,47}"
_ASSIGNED_ID: Final = re.compile(r"j[0-9a-z]{8}-[0-9]+")
_NAME: Final = re.compile(NAME_PATTERN)
_USER: Final = re.compile(USER_PATTERN)
_JOB_ID: Final = re.compile(JOB_ID_PATTERN)
_TASK_ID: Final = re.compile(rf"({JOB_ID_PATTERN})_(0|[1-9][0-9]{{0,8}})")
_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def is_name(text: str) -> bool:
    """True for a tenant's or a node's name: a DNS label of lower-case letters, digits and -."""
    return _NAME.fullmatch(text) is not None


def is_user(text: str) -> bool:
    return _USER.fullmatch(text) is not None


def is_job_id(text: str) -> bool:
    """True for an id that a client may choose."""
    return _JOB_ID.fullmatch(text) is not None and not is_assigned_id(text)


def is_assigned_id(text: str) -> bool:
    """True for the form that only the coordinator gives: j<generation>-<stream sequence>.

    A generation is milliseconds since 1970, which are eight base 36 digits until 2059: so a name
    such as `job-1` stays free for people.
    """
    return _ASSIGNED_ID.fullmatch(text) is not None


def is_any_id(text: str) -> bool:
    """True for the id of a job or of a task of an array, whoever chose it."""
    return (_JOB_ID.fullmatch(text) or _TASK_ID.fullmatch(text)) is not None


def task_id(array: str, number: int) -> JobId:
    """Of a task of an array: `<id>_<n>`, a form that no job has."""
    return JobId(f"{array}_{number}")


def array_of(id: str) -> tuple[str, int] | None:
    """(the array's id, the task's number) of a task's id; None for the id of a job."""
    match = _TASK_ID.fullmatch(id) if "_" in id else None
    return (match[1], int(match[2])) if match else None


def user_from_login(login: str) -> User:
    """A login name as a user: lower case, every other character becomes a hyphen."""
    cleaned = re.sub(r"[^a-z0-9_-]", "-", login.lower())[:64]
    return User(cleaned or "unknown")


def node_from_host(host: str) -> Node:
    """The first label of a host name, lower case, as a node's name."""
    label = re.sub(r"[^a-z0-9-]", "-", host.split(".", 1)[0].lower())[:63].strip("-")
    return Node(label or "node")


def job_id_from_bytes(entropy: bytes) -> JobId:
    """16 Crockford base32 characters from 10 random bytes (80 bit)."""
    if len(entropy) != 10:
        raise ValueError("a job id is made from 10 bytes")
    number = int.from_bytes(entropy, "big")
    return JobId("".join(_CROCKFORD[number >> shift & 31] for shift in range(75, -1, -5)))


def assigned_id(generation: int, sequence: int) -> JobId:
    """The id of a submission that came without one."""
    return JobId(f"j{base36(generation).rjust(8, '0')}-{sequence}")


def id_from_message_id(message_id: str, tenant: str) -> tuple[JobId, bool]:
    """(id, whether it was hashed) for a `Nats-Msg-Id`; the prefix `<tenant>/` is dropped.

    A message id that is no job id dedups as the first 16 hex digits of its SHA-256.
    """
    text = message_id.removeprefix(f"{tenant}/")
    if is_job_id(text):
        return JobId(text), False
    return JobId("m" + hashlib.sha256(message_id.encode()).hexdigest()[:16]), True


def base36(number: int) -> str:
    if number < 0:
        raise ValueError("only for numbers from 0")
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
        if not number:
            return digits
