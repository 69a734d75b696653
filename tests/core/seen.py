"""The comparison of what an editor saw of a session with its history."""

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
    gaps = [at for at, number in enumerate(seen) if number is None]
    silent = []
    for number in missing:
        before = max((at for at, other in enumerate(seen) if other is not None and other < number), default=-1)
        after = next((at for at in range(before + 1, len(seen)) if (seen[at] or 0) > number), len(seen))
        if not any(before < at < after for at in gaps):
            silent.append(number)
    if silent:
        faults.append(f"{len(silent)} updates are missing and it was not told, {silent[0]} to {silent[-1]}")
    return faults
