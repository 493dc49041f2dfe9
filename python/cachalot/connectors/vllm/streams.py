"""When the copies of a GPU's pages run: after what the engine had launched at a certain point, beside what it launches later.

A copy on the engine's own stream would hold up its next step for as long as the copy takes. A copy on another stream that
waits for nothing reads pages before the forward pass has written them. So the worker marks a place in the engine's stream,
and the copy waits for that place on a stream of ours.

`stream.wait_event(mark)` is enough: an event is done when all work is done that was on the engine's stream when it was
recorded, and CUDA makes the writes of that work visible to what waits for the event.
"""

import threading
from typing import Any, Optional


class Streams:
    """Of one device. Threads: mark(): the one that launches the engine's work; behind(): any, each has a stream."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._of_thread = threading.local()

    def mark(self) -> Any:
        """A place in the engine's stream: after all that is launched by now."""
        import torch

        return torch.cuda.current_stream(self._device).record_event()

    def behind(self, mark: Any) -> Any:
        """This thread's stream: what is put on it from now on runs after the mark."""
        import torch

        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = torch.cuda.Stream(self._device)
        self._of_thread.stream.wait_event(mark)
        return self._of_thread.stream


class NoStreams:
    """Of pages in memory of the CPU: what was launched is done."""

    def mark(self) -> None:
        return None

    def behind(self, mark: None) -> None:
        return None


def streams_of(device: Optional[int]) -> Any:
    return NoStreams() if device is None else Streams(device)
