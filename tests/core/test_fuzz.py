"""Whatever it is given, a function of the core answers as the plain version does, or by an error
that its `.pyi` names.

`make test` tries ten thousand inputs for each function, the same ones each time; `make fuzz` tries
a million others.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from kvstore.errors import FormatError
from tests.core.fuzzers import FUZZERS
from tests.core.fuzzing import Entry, Fuzzer, entries, fuzz

ENTRIES: Final = entries()
INPUTS: Final = int(os.environ.get("FUZZ_INPUTS", "10000"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "0"))


def test_every_function_of_the_core_has_a_fuzzer_in_tests_core_fuzzers() -> None:
    assert sorted(FUZZERS) == sorted(ENTRIES)


@pytest.mark.parametrize("name", FUZZERS)
def test_any_input_gets_an_answer_or_an_error_that_is_named(name: str) -> None:
    fuzz(ENTRIES[name], FUZZERS[name], INPUTS, SEED)


@pytest.mark.parametrize(
    "call",
    [lambda data: data[5], lambda data: len(data) // 2, lambda data: FormatError("not raised")],
)
def test_a_function_that_answers_wrongly_is_found_with_its_seed(call: object) -> None:
    entry = Entry("faulty", call, (FormatError,))  # type: ignore[arg-type] # any call will do
    fuzzer = Fuzzer(lambda rng: (rng.randbytes(6),), judge=lambda data: data[5])
    with pytest.raises(AssertionError, match="faulty, seed 7, input "):
        fuzz(entry, fuzzer, 200, 7)
