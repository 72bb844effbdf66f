"""Runs of gradient descent for several lengths, starts and seeds."""

import math
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np

from promptlimit.errors import ArgumentError
from promptlimit.results._kinds import Kind, Length
from promptlimit.results._result import Result, axis, scalar, variable
from promptlimit.results._trajectory import HasArraysT, OfOneHead, Trajectory

_AXES = "length", "start", "seed", "step"


class Training(Result):
    r"""Parameters along training, with the axes (length, start, seed, step).

    Attributes:
        steps: the numbers of steps at which parameters were recorded, [n].
        times: the times $2k\eta$ of the gradient flow that correspond to $k$ steps of size $\eta$,
            [n]; equal to `steps` if the optimiser is not plain gradient descent.
        lengths: $L$, the prompt lengths, whole numbers or infinity.
        kernels: the kernel of each start, "softmax" or "linear"; for a start that is not one head,
            its type and the kernels of its heads, such as "Layer(softmax, linear)".
        parameters: the trained arrays, by name, each [length, start, seed, step, ...].
        key_query: the merged $U$, [length, start, seed, step, dim, dim]; None if a start is not one
            head.
        value_matrix: the merged $V$, or $OV$ if the head has an output matrix $O$,
            [length, start, seed, step, outputs, dim]; None if a start is not one head.
        value: the risk $R_L$, the mean loss of the task, [length, start, seed, step]; NaN after a
            run has diverged, or if scores are too sharp for the weight statistics.
        gradient_norms: $\|\nabla R_L\|$ with respect to the trained arrays.
        error: one standard error of `value` over independent sets of points or prompts, widened by
            Student's law; 0 for a closed form.
        diverged: the number of steps after which a run diverged, [length, start, seed]; -1 if it
            did not.
        kind: the kind of the risks: "exact", "limit" if all lengths are infinite, or "estimate" if
            prompts are simulated.
        config: everything that determines the runs, as plain numbers and strings.
    """

    steps: np.ndarray = axis("step", scale="symlog")
    times: np.ndarray = variable("step")
    lengths: tuple[Length, ...] = axis("length", "L", keeps=True)
    kernels: tuple[str, ...] = variable("start", names=True)
    parameters: Mapping[str, np.ndarray] = variable(*_AXES, bulk=True)
    key_query: OfOneHead = variable(*_AXES, "token", "query", bulk=True)
    value_matrix: OfOneHead = variable(*_AXES, "output", "token", bulk=True)
    value: np.ndarray = variable(*_AXES, label="risk", scale="log")
    gradient_norms: np.ndarray = variable(*_AXES)
    error: np.ndarray = variable(*_AXES)
    diverged: np.ndarray = variable(*_AXES[:3])
    kind: Kind
    config: Mapping[str, object] = scalar(bulk=True)

    def trajectory(self, length: Length | None = None, start: int = 0, seed: int = 0) -> Trajectory:
        """Return one run, for `trajectory_gap`.

        Args:
            length: one of `lengths`; the first when None.
            start: the index of the start.
            seed: the index of the seed.
        """
        length = self.lengths[0] if length is None else length
        if length not in self.lengths:
            known = ", ".join(map(str, self.lengths))
            raise ArgumentError("length", f"must be one of {known}, got {length}.")
        _, starts, seeds = self.diverged.shape
        for name, index, count in (("start", start, starts), ("seed", seed, seeds)):
            if isinstance(index, bool) or not (isinstance(index, Integral) and 0 <= index < count):
                raise ArgumentError(
                    name, f"must be a whole number from 0 to {count - 1}, got {index}."
                )
        place = (self.lengths.index(length), start, seed)
        which = {"lengths": _plain(length), "start": start, "seed": seed}
        kind = "limit" if self.kind == "exact" and math.isinf(length) else self.kind
        times = self.times.tolist()
        return Trajectory(
            times=self.times,
            lengths=float(length),
            parameters={name: array[place] for name, array in self.parameters.items()},
            key_query=None if self.key_query is None else self.key_query[place],
            value_matrix=None if self.value_matrix is None else self.value_matrix[place],
            value=self.value[place],
            gradient_norms=self.gradient_norms[place],
            error=self.error[place],
            parameter_error=None,
            arrival_time=math.nan,
            kind=kind,
            config={**self.config, **which, "times": times, "kind": kind},
        )

    def attention(
        self,
        like: HasArraysT,
        length: Length | None = None,
        start: int = 0,
        seed: int = 0,
        place: int = -1,
    ) -> HasArraysT:
        """Return the attention of one run at one of the steps.

        Args:
            like: an attention with the trained arrays, such as the start.
            length: one of `lengths`; the first when None.
            start: the index of the start.
            seed: the index of the seed.
            place: the index in `steps`; the last by default.
        """
        return self.trajectory(length, start, seed).attention(like, place)

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length and start: squared errors over the seeds at the last step."""
        for i, length in enumerate(self.lengths):
            for j, kernel in enumerate(self.kernels):
                ends, errors = 2 * self.value[i, j, :, -1], 2 * self.error[i, j, :, -1]
                finished = np.isfinite(ends)
                values = ends[finished] if finished.any() else np.array([math.nan])
                lost = int((self.diverged[i, j] >= 0).sum())
                yield {
                    "length": length,
                    "kernel": kernel,
                    "squared error": float(np.median(values)),
                    "best": float(values.min()),
                    "worst": float(values.max()),
                    "± error": float(errors[finished].max()) if finished.any() else math.nan,
                    "diverged": f"{lost} of {ends.size}",
                    "kind": self.kind,
                }


class TrainingCost(Result):
    """The estimated time and memory of a training on this machine.

    Attributes:
        lengths: the prompt lengths, [n].
        seconds: the remaining time at each length, [n]; 0 for finished runs.
        finished: whether the runs at each length are finished, [n].
        runs: the number of runs at each length, which is starts times seeds.
        megabytes: the memory that the training requires.
    """

    lengths: np.ndarray = axis("length", "L", keeps=True)
    seconds: np.ndarray = variable("length", label="seconds")
    finished: np.ndarray = variable("length")
    runs: int
    megabytes: float

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length."""
        for length, seconds, done in zip(self.lengths, self.seconds, self.finished, strict=True):
            state = "finished" if done else "to do"
            yield {"length": int(length), "runs": self.runs, "state": state, "seconds": seconds}

    def notes(self) -> list[str]:
        """Return the totals."""
        total = float(self.seconds.sum())
        return [f"About {total:.3g} s and {self.megabytes:.0f} MB on this machine."]


def _plain(number: Length) -> Length | str:
    """Return a number, or the string "inf" for infinity, which JSON cannot represent."""
    return number if math.isfinite(number) else str(number)
