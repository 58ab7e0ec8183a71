"""Work in slices: a thread that parses keeps all others from running Python, so it rests between two slices."""

import threading
import time

SLICE = 0.0002  # seconds of CPU time between two rests
LONGEST = 0.2  # seconds of one rest: a stop waits for it


class TimeSlices(threading.local):
    """The slices of one thread. `rest` is how long it rests after a slice, as a multiple of it; 0 is not at all."""

    rest = 0.0
    _started = 0.0

    def begin(self, rest: float) -> None:
        """Begin a piece of work."""
        self.rest, self._started = rest, time.thread_time()

    def end(self, *, after: float = 0.0) -> None:
        """Rest, if the slice has taken more than `after` seconds of CPU time."""
        if self.rest:
            taken = time.thread_time() - self._started
            if taken > after:
                time.sleep(min(LONGEST, self.rest * taken))
                self._started = time.thread_time()


_slices = TimeSlices()
begin_slices, end_slice = _slices.begin, _slices.end


def let_others_run() -> None:
    """Rest for a moment if this thread has worked for a slice; what parses calls it after each row or part."""
    _slices.end(after=SLICE)
