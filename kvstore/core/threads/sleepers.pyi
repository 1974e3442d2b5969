"""Threads that sleep until another thread wakes them, many at a time; see sleepers.pyx."""

class Sleeper:
    """Made by the thread that will sleep, and woken once, by `wake_all`."""

    def sleep(self, seconds: float) -> bool:
        """Sleeps until the sleeper is woken, for at most 0 to 2^30 `seconds`; whether it was
        woken. May return early when a signal has come; what the signal's handler raises, this
        raises. Raises ValueError for other numbers.
        """

def wake_all(sleepers: list[Sleeper]) -> None:
    """Wakes all of them, and lets other threads run meanwhile. Raises TypeError, and wakes none, if
    something else is among them.
    """
