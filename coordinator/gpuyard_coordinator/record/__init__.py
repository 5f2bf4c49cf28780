"""The record of decisions: what each plan went by and what it decided, in files of bounded size.

A record is a row of segments, of which each stands alone: a snapshot of the yard, then the turns
that followed. `recorder` makes frames of turns, `segments` keeps them on the disk in a thread of
its own, `frames` is the form of the files. `gpuyard_coordinator.simulate` reads them.
"""

from gpuyard_coordinator.record.frames import BadRecord, read_frames, segments_of
from gpuyard_coordinator.record.recorder import Recorder
from gpuyard_coordinator.record.segments import Segments

__all__ = ["BadRecord", "Recorder", "Segments", "read_frames", "segments_of"]
