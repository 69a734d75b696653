"""The C library's thresholds: fixed, so that the memory of a large message goes back to the system."""

from acp_gateway.server.serve import OWN_BLOCK, give_back_memory


def test_both_thresholds_of_glibc_are_fixed() -> None:
    calls: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return 1

    give_back_memory(mallopt)
    assert calls == [(-3, OWN_BLOCK), (-1, OWN_BLOCK)]


def test_a_c_library_that_takes_no_thresholds_raises_nothing() -> None:
    give_back_memory(lambda _parameter, _value: 0)


def test_the_thresholds_of_this_process_can_be_set() -> None:
    give_back_memory()
