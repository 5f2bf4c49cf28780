"""JetStream in the yard's terms: conditional writes, atomic batches, consistent and fast reads."""

import asyncio
import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuyard.bus.link import Link
from gpuyard.bus.message import Message
from gpuyard.bus.publication import Page, PubAck, Publication, Stored, StreamState, parse_time
from gpuyard.bus.refusals import NoResponders, NotFound, refusal
from gpuyard.bus.repeating import repeated
from gpuyard.bus.sending import Outgoing, header_lines
from gpuyard.errors import LocalProtocolError, RemoteProtocolError, Unavailable

MAX_BATCH_MESSAGES: Final = 400
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
REQUEST_TIMEOUT_S: Final = 2.0
READ_ATTEMPTS: Final = 3
_OWN_HEADERS: Final = frozenset(
    {"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending"}
    | {"Nats-Last-Sequence"}
)


class JetStream:
    """Streams over one connection. Raises `Unavailable` for outages, whose outcome is unknown,
    and `StreamRefusal` (`Stale`, `Undecided`, `NotFound`) where the server said no."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def publish(
        self, publication: Publication, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> PubAck:
        """Store one message, once or not at all; repeating it is up to the caller."""
        message = await self.link.request(
            publication.subject,
            publication.data,
            headers=publication.all_headers(),
            timeout_s=timeout_s,
        )
        return _pub_ack(message, publication.subject)

    async def publish_batch(
        self, publications: Sequence[Publication], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> PubAck:
        """Store all messages or none, with one round trip; the answer is the last one's.

        All must belong to one stream. A timeout leaves open whether they were stored.
        """
        if not 0 < len(publications) <= MAX_BATCH_MESSAGES:
            raise LocalProtocolError(
                f"a batch of {len(publications)} messages; 1 to {MAX_BATCH_MESSAGES} are allowed"
            )
        size = sum(publication.size for publication in publications)
        if size > MAX_BATCH_BYTES:
            raise LocalProtocolError(f"a batch of {size} bytes is above {MAX_BATCH_BYTES}")
        batch = secrets.token_hex(12)
        # The server answers each part that asks; only the last one's answer says anything, so the
        # parts before it go out together with it, without a reply subject.
        *parts, last = publications
        if parts:
            await self.link.publish_all(_batch_parts(parts, batch), more_follows=True)
        headers = last.all_headers() | {
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(len(publications)),
            "Nats-Batch-Commit": "1",
        }
        message = await self.link.request(
            last.subject, last.data, headers=headers, timeout_s=timeout_s
        )
        return _pub_ack(message, last.subject)

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attempts: int = 1,
    ) -> dict[str, Any]:
        """A request to `$JS.API.<operation>`; above one attempt only for what is safe to repeat."""
        data = json.dumps(arguments).encode() if arguments is not None else b""

        async def ask() -> dict[str, Any]:
            try:
                message = await self.link.request(f"$JS.API.{operation}", data, timeout_s=timeout_s)
            except NoResponders as fault:
                raise Unavailable(
                    "JetStream does not answer: it is off, or has no leader"
                ) from fault
            return _answer(message.data, operation)

        return await repeated(ask, attempts=attempts)

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message on `subject`, markers included, as the stream's leader has it."""
        return await self._get(stream, {"last_by_subj": subject})

    async def first_from(self, stream: str, sequence: int) -> Stored | None:
        """The first message that still exists at or after `sequence`, as the leader has it."""
        return await self._get(stream, {"seq": sequence, "next_by_subj": ">"})

    async def direct_last(self, stream: str, subject: str) -> Stored | None:
        """The last message on `subject` from whichever server is quickest: it may be a bit old."""

        async def ask() -> Stored | None:
            return _from_direct(
                await self.link.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"")
            )

        return await repeated(ask, attempts=READ_ATTEMPTS)

    async def direct_last_until(self, stream: str, subject: str, sequence: int) -> Stored | None:
        """The last message on `subject` at or before `sequence`; it may be a bit old."""
        query = {"multi_last": [subject], "up_to_seq": sequence}
        page = await repeated(
            lambda: self._collect(f"$JS.API.DIRECT.GET.{stream}", query), attempts=READ_ATTEMPTS
        )
        return page.messages[-1] if page.messages else None

    async def direct_lasts(self, stream: str, subjects: Sequence[str]) -> list[Stored]:
        """The last message on each of up to 1,000 subjects, of those that have one; it may be a bit
        old."""
        query = {"multi_last": list(subjects)}
        page = await repeated(
            lambda: self._collect(f"$JS.API.DIRECT.GET.{stream}", query), attempts=READ_ATTEMPTS
        )
        return page.messages

    async def count(self, stream: str, subject: str) -> tuple[int, int]:
        """How many messages there are on `subject`, and the stream's last sequence then."""
        answer = await self.call(
            f"STREAM.INFO.{stream}", {"subjects_filter": subject}, attempts=READ_ATTEMPTS
        )
        state = answer["state"]
        return int((state.get("subjects") or {}).get(subject, 0)), int(state["last_seq"])

    async def read_page(
        self,
        stream: str,
        *,
        subject: str,
        from_sequence: int = 1,
        limit: int = 256,
        max_bytes: int = 4 * 1024 * 1024,
    ) -> Page:
        """Up to `limit` messages on `subject` (wildcards allowed), oldest first.

        For streams with direct access. A page always makes progress; it may be shorter than the
        limit before the end is reached.
        """
        query = {
            "seq": max(1, from_sequence),
            "next_by_subj": subject,
            "batch": limit,
            "max_bytes": max_bytes,
        }
        return await repeated(
            lambda: self._collect(f"$JS.API.DIRECT.GET.{stream}", query), attempts=READ_ATTEMPTS
        )

    async def state(self, stream: str) -> StreamState:
        """How much the stream holds; raises `NotFound` where there is no such stream."""
        answer = await self.call(f"STREAM.INFO.{stream}", attempts=READ_ATTEMPTS)
        state = answer["state"]
        return StreamState(
            messages=state["messages"],
            bytes=state["bytes"],
            first_sequence=state["first_seq"],
            last_sequence=state["last_seq"],
            max_bytes=answer["config"].get("max_bytes", -1),
        )

    async def purge(
        self, stream: str, *, below: int | None = None, subject: str | None = None
    ) -> int:
        """Remove messages with a lower sequence, on a subject, or all; returns how many."""
        arguments: dict[str, Any] = {}
        if below is not None:
            arguments["seq"] = below
        if subject is not None:
            arguments["filter"] = subject
        answer = await self.call(f"STREAM.PURGE.{stream}", arguments, attempts=READ_ATTEMPTS)
        return int(answer.get("purged", 0))

    async def _get(self, stream: str, query: Mapping[str, Any]) -> Stored | None:
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", query, attempts=READ_ATTEMPTS)
        except NotFound as fault:
            if fault.code == 10037:
                return None
            raise
        message = answer["message"]
        return Stored(
            subject=message["subject"],
            sequence=message["seq"],
            data=base64.b64decode(message.get("data") or ""),
            headers=parse_headers(base64.b64decode(message.get("hdrs") or "")),
            at=parse_time(message.get("time", "")),
        )

    async def _collect(self, subject: str, query: Mapping[str, Any]) -> Page:
        """One question, many answers: the server ends them with a message without a body."""
        answers: list[Message] = []
        ended: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def receive(answer: Message | Unavailable) -> None:
            if ended.done():
                return
            if isinstance(answer, Unavailable):
                ended.set_exception(answer)
            elif answer.headers.get("Status"):
                ended.set_result(answer)
            else:
                answers.append(answer)

        reply, forget = self.link.expect_replies(receive)
        try:
            await self.link.publish(subject, json.dumps(query).encode(), reply=reply)
            async with asyncio.timeout(REQUEST_TIMEOUT_S * 2):
                end = await ended
        except TimeoutError as fault:
            raise Unavailable(f"no answer on {subject}") from fault
        finally:
            forget()
        return _page(answers, end, subject)


def parse_headers(raw: bytes) -> dict[str, str]:
    """The header block of a stored message as a map."""
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", errors="replace").split("\r\n")[1:]:
        name, separator, value = line.partition(":")
        if separator:
            headers[name.strip()] = value.strip()
    return headers


def _batch_parts(publications: Sequence[Publication], batch: str) -> list[Outgoing]:
    """All of a batch but its last message. Equal conditions come in runs: a commit's are of a few
    sorts, those of the events that it tells are all the same."""
    parts: list[Outgoing] = []
    conditions: tuple[object, ...] | None = None
    for number, publication in enumerate(publications, 1):
        if publication.conditions != conditions:
            conditions, lines = publication.conditions, header_lines(publication.all_headers())
            if lines is None:
                raise LocalProtocolError(f"headers for {publication.subject} cannot be sent")
            begin = f"{lines}Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: "
        parts.append((publication.subject, publication.data, f"{begin}{number}\r\n"))
    return parts


def _answer(data: bytes, what: str) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError as fault:
        raise RemoteProtocolError(f"{what}: the server's answer is not JSON") from fault
    if not isinstance(answer, dict):
        raise RemoteProtocolError(f"{what}: the server's answer is not an object")
    error = answer.get("error")
    if isinstance(error, dict):
        raise refusal(error, what)
    return answer


def _pub_ack(message: Message, subject: str) -> PubAck:
    answer = _answer(message.data, subject)
    stream, sequence = answer.get("stream"), answer.get("seq")
    if not isinstance(stream, str) or not isinstance(sequence, int):
        raise RemoteProtocolError(f"{subject}: no stream acknowledged the message")
    return PubAck(stream=stream, sequence=sequence, duplicate=bool(answer.get("duplicate")))


def _from_direct(message: Message) -> Stored | None:
    headers = message.headers
    status = headers.get("Status")
    if status == "404":
        return None
    if status:
        raise Unavailable(f"direct read: {headers.get('Description', status)}")
    return Stored(
        subject=headers.get("Nats-Subject", ""),
        sequence=int(headers.get("Nats-Sequence", "0")),
        data=message.data,
        headers={name: text for name, text in headers.items() if name not in _OWN_HEADERS},
        at=parse_time(headers.get("Nats-Time-Stamp", "")),
    )


def _page(answers: Sequence[Message], end: Message, subject: str) -> Page:
    headers = end.headers
    status = headers.get("Status")
    if status == "404":
        return Page(messages=[], next_sequence=None)
    if status != "204":
        raise Unavailable(f"{subject}: {headers.get('Description', status)}")
    found = [stored for answer in answers if (stored := _from_direct(answer))]
    pending = int(headers.get("Nats-Num-Pending", "0"))
    more = pending > 0 and bool(found)
    return Page(messages=found, next_sequence=found[-1].sequence + 1 if more else None)
