"""`promptlimit stack`: several attention layers at every prompt length."""

from typing import Annotated

import typer

from promptlimit.cli._console import SeedOption, choice_option
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import (
    KERNELS,
    Files,
    Kernel,
    Lengths,
    Prompt,
    Samples,
    StackExample,
    load_problem,
)
from promptlimit.cli._progress import progress


def stack(
    files: Files = None,
    example: StackExample = None,
    law: Prompt = None,
    kernel: Annotated[
        Kernel | None, choice_option("--kernel", KERNELS, "Replaces the kernel of the files.")
    ] = None,
    lengths: Lengths = "10,30,100,300,1e3,1e4,1e6",
    causal: Annotated[
        bool, typer.Option("--causal", help="Each token attends to itself and earlier tokens only.")
    ] = False,
    samples: Samples = 256,
    seed: SeedOption = 0,
    *,
    output: Output,
) -> None:
    """Print the limit of a stack of layers, and the distance of finite outputs from it.

    The arrays key_query and value have one matrix per layer, or one per layer and head; residual
    has one per layer. Prompts are simulated at lengths up to 100.
    """
    with progress("stack") as shown:
        problem = load_problem(files, example, law, kernel=kernel, stack=True)
        import jax

        from promptlimit.finite import stack_report

        report = stack_report(
            problem.attention,
            problem.measure,
            problem.query,
            lengths,
            causal=causal,
            key=jax.random.key(seed) if samples else None,
            samples=samples or None,
            watch=shown.step,
        )
    emit(report, output, "stack")
