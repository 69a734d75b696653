"""The comparison of what an editor saw of a session with its history."""

from bisect import bisect
from collections import Counter


def faults_of(seen: list[int | None], truth: list[int]) -> list[str]:
    """Return the difference between a history and the part that a viewer saw."""
    faults = []
    numbers = [number for number in seen if number is not None]
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if twice:
        faults.append(f"{len(twice)} updates came twice, {min(twice)} to {max(twice)}")
    elif numbers != sorted(numbers):
        faults.append("updates came out of order")
    missing = sorted(set(truth) - set(numbers))
    places = [at for at, number in enumerate(seen) if number is not None]
    gaps = [at for at, number in enumerate(seen) if number is None]
    silent = []
    for number in missing if numbers == sorted(numbers) else ():
        # The place of the next number that was seen, and of the one before.
        later = bisect(numbers, number)
        before, after = places[later - 1] if later else -1, places[later] if later < len(places) else len(seen)
        if bisect(gaps, before) == bisect(gaps, after):
            silent.append(number)
    if silent:
        faults.append(f"{len(silent)} updates are missing and it was not told, {silent[0]} to {silent[-1]}")
    return faults
