"""Programs checked in a child process: one that kills its process is a difference like another."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, Any, final

import torch

from tests.fuzz.generator import generate
from tests.fuzz.program import Program
from tests.fuzz.runner import Difference, check
from tests.fuzz.training_plans import TrainingPlan, plan_training
from tests.fuzz.training_runs import check_training
from tests.fuzz.world import run_world

_PROGRAMS_PER_CHILD = 400


@final
class Checker:
    """`check` in a forked child, which is replaced when it dies and from time to time.

    prepare: called in each child before it serves.
    """

    def __init__(self, prepare: Callable[[], object] = lambda: None) -> None:
        self._prepare = prepare
        self._child = 0
        self._served = 0
        self._requests: IO[bytes] | None = None
        self._answers: IO[bytes] | None = None

    def __call__(self, program: Program | TrainingPlan | int) -> Difference | None:
        """The first difference of a program, of a training step, or of the program of a seed."""
        if not self._child or self._served >= _PROGRAMS_PER_CHILD:
            self.close()
            self._start()
        assert self._requests is not None
        assert self._answers is not None
        self._served += 1
        try:
            pickle.dump(program, self._requests)
            self._requests.flush()
            answer: Difference | None = pickle.load(self._answers)
        except (EOFError, BrokenPipeError):
            status = self.close()
            return Difference("crash", -1, f"the process ended with {status}", f"dead {status}")
        return answer

    def close(self) -> int:
        """End the child; its exit status."""
        if not self._child:
            return 0
        assert self._requests is not None
        assert self._answers is not None
        with suppress(BrokenPipeError):  # children forked later hold the pipe open: say it
            pickle.dump(None, self._requests)
            self._requests.flush()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        return os.waitstatus_to_exitcode(status)

    def _start(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        sys.stdout.flush()
        self._served = 0
        self._child = os.fork()
        if not self._child:
            os.close(ours[1])
            os.close(theirs[0])
            torch.set_num_threads(1)  # OpenMP's threads are not forked: a child would wait for them
            run_world(
                generate(0), None
            )  # imports what eager imports late, beyond any limit of time
            self._prepare()
            _serve(ours[0], theirs[1])
        os.close(ours[0])
        os.close(theirs[1])
        self._requests, self._answers = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")


def described(found: Iterable[tuple[int, Difference | None]]) -> str:
    """The differences, a paragraph for each seed; "" if there is none. What pytest shows of a long
    value has no middle, which is where two worlds differ."""
    return "\n\n".join([f"seed {seed}: {parted}" for seed, parted in found if parted is not None])


def check_programs(
    seeds: Iterable[int],
    made: Callable[[int], Program] = generate,
    prepare: Callable[[], object] = lambda: None,
) -> Iterator[tuple[int, Difference | None]]:
    """Each seed with the difference of the program that is made of it, in order. prepare: see
    `Checker`."""
    return _checked(seeds, made, prepare)


def check_training_seeds(seeds: Iterable[int]) -> Iterator[tuple[int, Difference | None]]:
    """The same of training steps."""
    return _checked(seeds, plan_training)


def _checked(
    seeds: Iterable[int],
    made: Callable[[int], Program | TrainingPlan],
    prepare: Callable[[], object] = lambda: None,
) -> Iterator[tuple[int, Difference | None]]:
    checker = Checker(prepare=prepare)
    try:
        for seed in seeds:
            yield seed, checker(made(seed))
    finally:
        checker.close()


def _serve(reading: int, writing: int) -> None:
    """The child: answers until the pipe ends, then leaves without running the parent's handlers."""
    status = 1
    try:
        with os.fdopen(reading, "rb") as requests, os.fdopen(writing, "wb") as answers:
            while True:
                try:
                    given = pickle.load(requests)
                except EOFError:
                    break
                if given is None:
                    break
                pickle.dump(_answer(given), answers)
                answers.flush()
        status = 0
    finally:
        os._exit(status)


def _answer(given: Any) -> Difference | None:
    try:
        if isinstance(given, TrainingPlan):
            return check_training(given)
        return check(given if isinstance(given, Program) else generate(given))
    except Exception as error:  # of the generator, of eager, or of the harness
        text = "".join(traceback.format_exception(error))
        return Difference("harness", -1, text, repr(error)[:60])
