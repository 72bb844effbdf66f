"""Quantities choose rules, report obstacles, and explain a call without running it."""

import dataclasses

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.concentration import GAPS
from promptlimit.finite import PROMPT_MOMENTS, checked_problem
from promptlimit.rules import Effort, OutOfScope, Quantity, applies_always, computes

HEAD = pl.SoftmaxAttention([[1.0, 0.5], [0.0, 1.0]], np.eye(2))
NORMAL = pl.Gaussian(np.zeros(2), np.eye(2))
POINTS = pl.Rademacher([1.0, 2.0])
KEY = jax.random.key(0)


@dataclasses.dataclass(frozen=True)
class Number:
    value: int

    @property
    def subject(self) -> str:
        return f"the number {self.value}"


def odd(problem: Number) -> str | None:
    return None if problem.value % 2 else "it is even"


def small(problem: Number) -> str | None:
    return None if problem.value < 10 else OutOfScope("it is large")


@pytest.fixture
def root() -> Quantity[Number, float]:
    quantity: Quantity[Number, float] = Quantity("root")

    @quantity.rule(kind="exact", scope="odd numbers", method="table", obstacle=odd)
    def table(problem, effort):
        return problem.value**0.5

    @quantity.rule(kind="exact", scope="small numbers", method="fingers", obstacle=small)
    def fingers(problem, effort):
        return problem.value**0.5

    @quantity.rule(kind="estimate", scope="anything", method="dice")
    def dice(problem, effort):
        return float(problem.value)

    return quantity


def test_rules_of_a_kind_are_tried_in_the_order_of_their_registration(root):
    chosen = [root.choose(Number(n), "auto", Effort()).method for n in (3, 4, 13)]
    assert chosen == ["table", "fingers", "table"]


def test_a_rule_registered_first_precedes_the_others(root):
    @root.rule(kind="exact", scope="anything", method="slide rule", first=True)
    def slide(problem, effort):
        return 0.0

    assert root.choose(Number(3), "auto", Effort()).compute is slide
    root.remove(slide)
    assert root.choose(Number(3), "auto", Effort()).method == "table"


def test_registering_a_function_again_replaces_its_rule(root):
    def mine(problem, effort):
        return 1.0

    for _ in range(3):
        root.rule(kind="bound", scope="anything", method="one", obstacle=applies_always)(mine)
    assert len(root.rules) == 4


def test_removing_an_unknown_rule_is_an_error(root):
    with pytest.raises(ValueError, match=r"^`compute` must be a rule of root, got"):
        root.remove(print)


def test_a_kind_must_exist(root):
    with pytest.raises(ValueError, match=r"^`kind` must be one of 'limit', .*Did you mean 'exact'"):
        root.rule(kind="exactly", scope="", method="")


def test_errors_prefer_the_reason_of_a_rule_whose_scope_holds(root):
    with pytest.raises(
        pl.KindUnavailableError,
        match=r"^`kind` must be 'estimate' for the number 12, got 'exact': it is even\.$",
    ):
        root.choose(Number(12), "exact", Effort())


def test_errors_give_the_reasons_of_user_defined_rules(root):
    def rare(problem):
        return "it is not a prime I know"

    def small_limit(problem):
        return "it is not infinite"

    root.rule(kind="exact", scope="some", method="mine", obstacle=rare, first=True)(lambda *_: 0.0)
    root.rule(kind="limit", scope="inf", method="mine", obstacle=small_limit)(lambda *_: 0.0)
    with pytest.raises(
        pl.KindUnavailableError, match=r"'exact': it is not a prime I know; it is even"
    ):
        root.choose(Number(12), "exact", Effort())
    with pytest.raises(
        ValueError, match=r"\(it is not a prime I know; it is even; it is not infinite\), got None"
    ):
        root.choose(Number(12), "auto", Effort())


def not_points(problem):
    return "the tokens are not points"


def test_the_reason_of_a_user_defined_rule_precedes_the_built_in_one():
    def diameter(problem, effort):
        raise AssertionError

    linear = pl.LinearAttention(np.eye(2), np.eye(2))
    rule = GAPS.rule(kind="bound", scope="points", method="mine", obstacle=not_points, first=True)
    rule(diameter)
    message = r"got 'bound': the tokens are not points; it is not a softmax head\.$"
    try:
        with pytest.raises(pl.KindUnavailableError, match=message):
            pl.output_gap(linear, NORMAL, np.eye(2), [3], kind="bound")
    finally:
        GAPS.remove(diameter)


def test_a_reason_passes_through_the_rules_that_build_on_a_rule():
    class Silent(pl.AbstractTask):
        token_dim = 2

        def draw(self, *, key):
            return NORMAL, NORMAL

        def query_of(self, token):
            return token

        def loss(self, output, token):
            return (output**2).sum()

    def nothing(problem, effort):
        raise AssertionError

    objective, linear = pl.tasks.OBJECTIVE, pl.LinearAttention(np.eye(2), np.eye(2))
    objective.rule(kind="exact", scope="mine", method="mine", obstacle=not_points)(nothing)
    try:
        for task, head in (
            (Silent(), HEAD),
            (pl.LinearRegression(np.eye(1)), pl.MultiHead([HEAD, linear])),
        ):
            with pytest.raises(ValueError, match="the tokens are not points"):
                pl.risk(head, task, 4, kind="exact")
    finally:
        objective.remove(nothing)


@pytest.mark.parametrize("returned", [False, True, 0, "", ["a reason"]])
def test_an_obstacle_returns_none_or_a_sentence(root, returned):
    root.rule(kind="exact", scope="mine", method="mine", obstacle=lambda _: returned, first=True)(
        lambda *_: 0.0
    )
    with pytest.raises(TypeError, match=r"^`obstacle` of the rule for mine must return None where"):
        root.choose(Number(3), "auto", Effort())


def test_the_limit_is_the_kind_of_infinite_lengths():
    task = pl.LinearRegression(np.eye(1))
    message = (
        r"^`kind` must be one of 'auto', 'exact', 'asymptotic', 'estimate' for SoftmaxAttention "
        r"on LinearRegression at finite lengths, got 'limit'\. Pass lengths=math\.inf"
    )
    with pytest.raises(pl.KindUnavailableError, match=message):
        pl.risk(HEAD, task, [10, np.inf], kind="limit")
    assert pl.risk(HEAD, task, np.inf, kind="limit").kind == "limit"
    assert pl.prompt_moments(HEAD, NORMAL, [1.0, 0.0], np.inf, kind="limit").kind == "limit"


def test_where_the_exact_rule_is_inaccurate_auto_simulates_with_a_key(root):
    def inaccurate(problem, effort):
        raise pl.errors.AccuracyError("too few digits.")

    root.rule(kind="exact", scope="anything", method="blurred", first=True)(inaccurate)
    for kind, key in (("auto", None), ("exact", KEY)):
        effort = Effort(key)
        rule = root.choose(Number(3), kind, effort)
        with pytest.raises(pl.errors.AccuracyError, match="too few digits"):
            root.compute(rule, Number(3), kind, effort)
    rule = root.choose(Number(3), "auto", Effort(KEY))
    used, value = root.compute(rule, Number(3), "auto", Effort(KEY))
    assert (rule.method, used.method, value) == ("blurred", "dice", 3.0)


def test_a_quantity_without_simulation_says_that_it_is_not_available():
    quantity: Quantity[Number, float] = Quantity("half")
    quantity.rule(kind="exact", scope="odd", method="by hand", obstacle=odd)(lambda *_: 0.5)
    with pytest.raises(
        pl.KindUnavailableError, match=r"^`half` is not available for the number 2: it is even\.$"
    ):
        quantity.choose(Number(2), "auto", Effort())


@pytest.mark.parametrize(
    ("function", "arguments", "keywords"),
    [
        (pl.prompt_moments, (HEAD, NORMAL, [1.0, 0.0], [10, 20]), {}),
        (pl.prompt_moments, (HEAD, POINTS, [1.0, 0.0], np.inf), {}),
        (pl.output_gap, (HEAD, POINTS, np.eye(2), [10, 20]), {"kind": "asymptotic"}),
        (pl.gradient_gap, (HEAD, NORMAL, np.eye(2), 10), {"wrt": "value"}),
        (pl.gradient_moments, (HEAD, NORMAL, [1.0, 0.0], 10), {"wrt": "key_query"}),
        (pl.output_law, (HEAD, NORMAL, [1.0, 0.0], 10), {}),
        (pl.output_law, (HEAD, POINTS, [1.0, 0.0], 3), {"key": KEY, "samples": 16}),
    ],
)
def test_the_explained_rule_is_the_one_that_computes(function, arguments, keywords):
    explained = pl.explain(function, *arguments, **keywords)
    assert explained.chosen is not None
    assert function(*arguments, **keywords).kind == explained.chosen.kind
    applying = [rule for rule, obstacle in explained.obstacles if obstacle is None]
    assert next(rule for rule in applying if rule.kind == explained.chosen.kind) is explained.chosen


def test_explaining_computes_nothing():
    ran = []
    rule = PROMPT_MOMENTS.rule(kind="exact", scope="anything", method="spy", first=True)
    spy = rule(lambda *_: ran.append(1))
    try:
        found = pl.explain(pl.prompt_moments, HEAD, NORMAL, [1.0, 0.0], 10)
    finally:
        PROMPT_MOMENTS.remove(spy)
    assert found.chosen is not None
    assert (found.chosen.method, ran) == ("spy", [])


def test_the_table_marks_the_chosen_rule_and_gives_reasons():
    lines = str(pl.explain(pl.output_gap, HEAD, POINTS, np.eye(2), [10])).splitlines()
    assert lines[0].startswith("output_gap: SoftmaxAttention over Rademacher tokens at ")
    assert len(lines) == 2 + len(GAPS.rules)
    marked = [line for line in lines if line.startswith(">")]
    assert len(marked) == 1
    assert marked[0].endswith("chosen")
    assert "query by query" in marked[0]
    assert lines[2].endswith("no: the tokens are not Gaussian")


def test_an_explanation_shows_the_error_that_the_call_would_raise():
    found = pl.explain(pl.output_gap, HEAD, POINTS, NORMAL, [10])
    assert found.chosen is None
    with pytest.raises(ValueError, match=r"^`key` must be given") as raised:
        pl.output_gap(HEAD, POINTS, NORMAL, [10])
    assert found.error == str(raised.value)
    assert f"error: {raised.value}" in str(found)


def test_a_required_length_is_explained_by_the_best_kind_available():
    found = pl.explain(pl.required_length, HEAD, NORMAL, NORMAL, 0.1)
    assert found.chosen is not None
    assert (found.chosen.kind, found.error) == ("exact", None)
    found = pl.explain(pl.required_length, HEAD, POINTS, NORMAL, 0.1, absolute=True)
    assert found.chosen is not None
    assert found.chosen.kind == "bound"
    assert pl.required_length(HEAD, POINTS, NORMAL, 0.1, absolute=True).exact is None


def test_invalid_arguments_are_errors_also_when_explained():
    with pytest.raises(ValueError, match="`lengths`"):
        pl.explain(pl.output_gap, HEAD, NORMAL, NORMAL, [10, 5])


def test_after_an_explanation_calls_compute_again():
    pl.explain(pl.output_gap, HEAD, NORMAL, NORMAL, [10])
    assert pl.output_gap(HEAD, NORMAL, NORMAL, [10]).kind == "exact"


def test_a_function_without_rules_is_an_error():
    def plain():
        pass

    with pytest.raises(
        ValueError, match=r"^`function` must be a function that has rules, got plain\."
    ):
        pl.explain(plain)


def test_a_user_function_can_be_explained(root):
    @computes(root)
    def square_root(value):
        problem = Number(value)
        return root.choose(problem, "auto", Effort()).compute(problem, Effort())

    found = pl.explain(square_root, 9)
    assert found.chosen is not None
    assert (found.chosen.method, square_root(9)) == ("table", 3.0)


def test_replacing_the_parameter_gives_the_structure_of_the_new_one():
    problem = checked_problem(HEAD, NORMAL, np.array([10.0]), query=[1.0, 0.0], wrt="value")
    assert problem.compared_head is not None
    assert problem.compared_head.left is None
    other = dataclasses.replace(problem, wrt="key_query")
    assert other.compared_head is not None
    assert other.compared_head.left is not None
    assert problem.at(np.ones(2)).compared_head is problem.compared_head
    assert problem.with_lengths(np.array([3.0])).compared_head is problem.compared_head


def test_a_rule_that_returns_too_few_numbers_is_refused():
    head, law = pl.SoftmaxAttention([[1.0]], [[1.0]]), pl.Gaussian([0.0], [[1.0]])

    def one(problem, effort):
        return pl.concentration.GapValues(np.ones(1), np.zeros(1))

    gaps = pl.concentration.GAPS
    gaps.rule(kind="bound", scope="anything", method="one number", first=True)(one)
    try:
        with pytest.raises(TypeError, match="must return values and errors for 2 lengths"):
            pl.output_gap(head, law, law, [1, 10], kind="bound")
    finally:
        gaps.remove(one)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([0.5, 0.5], TypeError, "one `Estimate` per length"),
        ([pl.tasks.Estimate(0.5, 0.0, 0)], TypeError, "one `Estimate` per length"),
        ([pl.tasks.Estimate(float("nan"), 0.0, 0)] * 2, pl.errors.AccuracyError, "gave NaN"),
    ],
)
def test_a_rule_of_risk_that_returns_no_estimates_is_refused(returned, error, message):
    task = pl.LinearRegression(np.eye(2))
    head = pl.SoftmaxAttention(np.eye(3), np.eye(3))

    def wrong(problem, effort):
        return returned

    pl.tasks.RISK.rule(kind="exact", scope="anything", method="wrong", first=True)(wrong)
    try:
        with pytest.raises(error, match=message):
            pl.risk(head, task, [10, 20])
    finally:
        pl.tasks.RISK.remove(wrong)
