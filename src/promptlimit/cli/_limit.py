"""`promptlimit limit`: softmax and linear attention for one prompt and one query."""

from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import Example, Files, Prompt, load_problem


def limit(
    files: Files = None, example: Example = None, law: Prompt = None, *, output: Output
) -> None:
    """Print the softmax limit, the linear limit and the distance between them.

    If the prompt is a list of tokens, print both outputs for that finite prompt.
    """
    problem = load_problem(files, example, law)
    from promptlimit.attention import limits

    emit(limits(problem.attention, problem.measure, problem.query), output, "limit")
