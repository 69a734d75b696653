"""Limits the threads that one kind of work for browsers has."""

import trio


def limiter_of(variable: "trio.lowlevel.RunVar[trio.CapacityLimiter]", threads: int) -> trio.CapacityLimiter:
    """Return the limiter that a variable has in this run of Trio, made at the first call for so many threads."""
    try:
        return variable.get()
    except LookupError:
        limiter = trio.CapacityLimiter(threads)
        variable.set(limiter)
        return limiter
