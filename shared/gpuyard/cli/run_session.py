"""`gpuyard run` from its submission to its exit code.

Rules: the job's bytes pass unchanged; everything of ours goes to stderr; a signal is answered at
once, whatever the yard does; once the job may exist, an end that we cause is an end of the job
too, or says that the job goes on.
"""

import asyncio
import contextlib
import errno
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuyard.cli.ending import CLOSED_PIPE, INTERRUPTED, OWN_TIMEOUT, UNAVAILABLE, YARD_FAILED, say
from gpuyard.cli.members import RankedOutput
from gpuyard.cli.output_writer import OutputWriter
from gpuyard.cli.streams import write
from gpuyard.cli.terminal import DetachKeys, ProgressLine, is_interactive
from gpuyard.client.async_client import AsyncClient
from gpuyard.client.follow import Follower, is_chunk, is_event
from gpuyard.client.jobs import Job
from gpuyard.client.output import ShownChunk
from gpuyard.errors import GpuyardError, UnknownThing
from gpuyard.messages import Event
from gpuyard.model.grace import DEFAULT_STOP_GRACE_S, stop_grace_s

if TYPE_CHECKING:
    from gpuyard.cli.progress import PullLines

SECOND_PRESS_S: Final = 3.0
BEYOND_GRACE_S: Final = 10.0
"""How much longer than the job's grace its end is waited for after a cancel of ours."""
_WATCHED: Final = ("SIGINT", "SIGTERM", "SIGHUP")
_DETACH: Final = "detach"
_TIMEOUT: Final = "timeout"


@dataclass(frozen=True, slots=True)
class RunOptions:
    is_quiet: bool = False
    json: bool = False
    timeout_s: float | None = None


class RunSession:
    """One run. `spec` has an id already, so that the job can be named at any moment."""

    def __init__(self, client: AsyncClient, spec: Mapping[str, Any], options: RunOptions) -> None:
        self.view: Mapping[str, Any] | None = None
        self._client = client
        self._spec = spec
        self._options = options
        self._id = str(spec["id"])
        self._news: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._progress = ProgressLine(is_quiet=options.is_quiet)
        self._told = ""
        """The last line about waiting, so that each is told once."""
        self._pulls: PullLines | None = None
        self._code_if_cancelled: int | None = None
        self._pressed_at: float | None = None
        self._leave_at: float | None = None
        self._has_begun = asyncio.Event()
        self._ranked = RankedOutput()

    async def run(self) -> int:
        """The exit code; the job has ended, or what is said on stderr tells that it goes on."""
        handled = self._watch_signals()
        keys = DetachKeys(lambda: self._news.put_nowait(_DETACH))
        timer = None
        if self._options.timeout_s is not None:
            timer = self._loop.call_later(self._options.timeout_s, self._news.put_nowait, _TIMEOUT)
        try:
            with keys:
                self._loop.add_signal_handler(signal.SIGCONT, keys.resume)
                return await self._supervise()
        finally:
            if timer is not None:
                timer.cancel()
            self._progress.clear()
            for number in (*handled, signal.SIGCONT):
                self._loop.remove_signal_handler(number)

    def _watch_signals(self) -> list[signal.Signals]:
        handled = []
        for name in _WATCHED:
            number = signal.Signals[name]
            # What nohup or a shell's & has switched off stays off.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._news.put_nowait, name)
                handled.append(number)
        return handled

    async def _supervise(self) -> int:
        work = asyncio.create_task(self._follow())
        try:
            while True:
                news = asyncio.create_task(self._news.get())
                limit = None if self._leave_at is None else self._leave_at - self._loop.time()
                await asyncio.wait({work, news}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    news.cancel()
                    return self._ended(work.result())
                if not news.done():
                    news.cancel()
                    say(f"job {self._id} has not ended yet; it was asked to")
                    return self._code_if_cancelled or YARD_FAILED
                code = await self._on_news(news.result(), work)
                if code is not None:
                    return code
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, GpuyardError, OSError):
                await work

    async def _follow(self) -> Job:
        writer = OutputWriter()
        try:
            self._progress.show("submitting")
            async with self._client.started(self._spec, notice=self._say) as (follower, job):
                self._has_begun.set()
                if job.warning:
                    self._say(job.warning)
                await self._show_all(follower, writer)
                await writer.drain()
                return Job.from_view(follower.view or job.view)
        finally:
            writer.end()

    async def _show_all(self, follower: Follower, writer: OutputWriter) -> None:
        async for item in follower.items():
            if is_event(item):
                self._show_event(item)
            elif is_chunk(item):
                await self._show_chunk(item, writer)
        await self._show_lines(self._ranked.flush(), writer)

    def _show_event(self, event: Event) -> None:
        # Loaded here, when the job is on its way: it may start in the meantime.
        from gpuyard.cli import progress

        if text := progress.note(event):
            self._say(text)
        if text := progress.doing(event):
            self._progress.show(f"job {progress.short_id(self._id)} {text}")
        if self._progress.is_shown or self._options.is_quiet:
            return
        text = progress.holding_up(event)
        if text and text != self._told:
            self._told = text
            self._say_of_job(text)
        if self._pulls is None:
            self._pulls = progress.PullLines(str(self._spec.get("image")))
        if text := self._pulls.begun(event):
            self._say_of_job(text)
        elif event["kind"] == "running":
            self._say_pulled()

    def _say_pulled(self) -> None:
        if self._pulls is not None and (text := self._pulls.ended()):
            self._say_of_job(text)

    def _say_of_job(self, text: str) -> None:
        from gpuyard.cli import progress

        self._say(f"job {progress.short_id(self._id)} {text}")

    async def _show_chunk(self, chunk: ShownChunk, writer: OutputWriter) -> None:
        self._progress.clear()
        if chunk["data"]:
            # The output may be here before the event that the job runs.
            self._say_pulled()
        if "rank" in chunk:
            await self._show_lines(self._ranked.feed(chunk), writer)
            return
        if chunk["lost_bytes"]:
            await writer.drain()
            self._say(f"{chunk['lost_bytes']} bytes of output are missing here")
        if chunk["data"]:
            is_error = chunk["stream"] == 2 or self._options.json
            await writer.write(2 if is_error else 1, chunk["data"])

    async def _show_lines(self, lines: Iterator[tuple[int, bytes]], writer: OutputWriter) -> None:
        for stream, data in lines:
            await writer.write(2 if self._options.json else stream, data)

    def _ended(self, job: Job) -> int:
        from gpuyard.cli import progress

        self.view = job.view
        self._progress.clear()
        if job.state == "succeeded":
            self._say_pulled()
        was_ours = job.reason == "cancelled" and self._code_if_cancelled is not None
        if not was_ours and (text := progress.ending(job.view)):
            say(text)
        if was_ours and self._code_if_cancelled is not None:
            return self._code_if_cancelled
        status = job.exit_status
        return YARD_FAILED if status is None else status

    async def _on_news(self, name: str, work: "asyncio.Task[Job]") -> int | None:
        """Answer a signal, a key or the clock; a code means: leave with it now."""
        if name in (_DETACH, "SIGHUP"):
            return await self._detach(name)
        if name == "SIGINT" and is_interactive() and self._code_if_cancelled is None:
            return await self._pressed(work)
        if name == _TIMEOUT:
            self._say("the time of --timeout is over; cancelling the job")
            return await self._cancel(OWN_TIMEOUT, work, "run --timeout")
        if self._code_if_cancelled is not None:
            self._say(f"leaving; job {self._id} was asked to end")
            return self._code_if_cancelled
        return await self._cancel(128 + signal.Signals[name].value, work, name)

    async def _detach(self, name: str) -> int:
        if not self._has_begun.is_set():
            # Too early to leave: the job may not be stored yet.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await self._has_begun.wait()
        if name == _DETACH:
            self._say(f"job {self._id} goes on; 'gpuyard logs -f {self._id}' follows it")
        return 0

    async def _pressed(self, work: "asyncio.Task[Job]") -> int | None:
        now = self._loop.time()
        if not self._has_begun.is_set() or (
            self._pressed_at is not None and now - self._pressed_at <= SECOND_PRESS_S
        ):
            return await self._cancel(INTERRUPTED, work, "Ctrl-C")
        self._pressed_at = now
        self._say(f"job {self._id} goes on; Ctrl-C again within 3 s cancels it")
        return None

    async def _cancel(self, code: int, work: "asyncio.Task[Job]", why: str) -> int | None:
        """Cancel the job and go on following it, so that its end is seen and its grace kept."""
        self._code_if_cancelled = code
        is_early = not self._has_begun.is_set()
        self._progress.show("cancelling")
        try:
            if is_early:
                work.cancel()
                await self._client.revoke(self._id, reason=why)
                return code
            await self._client.cancel(self._id, reason=why)
        except UnknownThing:
            return code
        except GpuyardError as fault:
            self._say(f"job {self._id} could not be cancelled and goes on: {fault}")
            return UNAVAILABLE
        self._leave_at = self._loop.time() + self._grace_s() + BEYOND_GRACE_S
        return None

    def _grace_s(self) -> float:
        try:
            return stop_grace_s(self._spec)
        except (TypeError, ValueError):
            # Nobody has looked at the spec yet.
            return DEFAULT_STOP_GRACE_S

    def _say(self, text: str) -> None:
        self._progress.clear()
        say(text)


async def run_attached(client: AsyncClient, spec: Mapping[str, Any], options: RunOptions) -> int:
    """Runs the job and returns the exit code; with `json` its last view is on stdout."""
    session = RunSession(client, spec, options)
    try:
        code = await session.run()
    except BrokenPipeError:
        say(f"nobody reads the output any more; job {spec['id']} goes on")
        return CLOSED_PIPE
    except OSError as fault:
        if fault.errno != errno.EIO:
            raise
        # The terminal has gone away, and its SIGHUP is still on the way: it means the same.
        return 0
    if options.json and session.view is not None:
        from gpuyard.cli.render import json_object

        write(json_object(session.view))
    return code
