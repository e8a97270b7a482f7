"""Cases as plain data (data/scripts.yaml), and what the runner says of those that do not hold."""

from pathlib import Path

import pytest
import yaml

from octavo import Cache, IntegrityError
from octavo.testing import CaseFailed, run_case
from octavo.testing.casedata import read_tokens

DATA = Path(__file__).parent / "data"
SCRIPTS = yaml.safe_load((DATA / "scripts.yaml").read_text(encoding="utf-8"))
SMALL = {"pages": 4, "page_size": 4}


def failure(*steps, plan=SMALL, make_cache=Cache, **words):
    """How a case of these steps fails."""
    with pytest.raises(CaseFailed) as caught:
        run_case({"id": "X", "plan": plan, "steps": steps} | words, make_cache)
    return caught.value


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: f"{case['id']} {case['title']}")
def test_script(case):
    """Every step holds, and the cache's laws after it."""
    run_case(case)


def test_scripts_are_known_cases():
    """Every script is told, with where it comes from, in cases.yaml."""
    told = yaml.safe_load((DATA / "cases.yaml").read_text(encoding="utf-8"))
    known = {case["id"] for section in told.values() for case in section}

    assert {case["id"] for case in SCRIPTS} <= known


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: f"{case['id']} {case['title']}")
def test_scripts_can_fail(case):
    """With any one expectation made wrong a script fails in that very step."""
    places = [(at, word) for at, step in enumerate(case["steps"]) for word in step]
    for at, word in places:
        steps = list(case["steps"])
        if word == "gives":
            steps[at] = steps[at] | {word: -1}
        elif word == "refused":
            steps[at] = steps[at] | {word: "KeyboardInterrupt"}
        elif word == "expect":
            steps[at] = {word: {name: dict.fromkeys(f, -1) for name, f in steps[at][word].items()}}
        else:
            continue
        with pytest.raises(CaseFailed) as caught:
            run_case(case | {"steps": steps})

        assert at + 1 == caught.value.step


ADMIT, RUN = {"admit": "a", "tokens": "0..4"}, {"run": "a"}


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            [ADMIT, RUN, {"expect": {"a": {"length": 6, "computed": 6}}}],
            "case X, step 3, expect, a.computed: expected 6, actual 5",
        ),
        (
            [ADMIT, RUN, {"peek": "0..4", "gives": 0}],
            "case X, step 3, peek 0..4, what it gives: expected 0, actual 4",
        ),
        (
            [ADMIT, {"truncate": "a", "length": 2, "refused": "LengthError"}],
            "case X, step 2, truncate a: expected LengthError, actual no error",
        ),
        (
            [ADMIT, {"resume": "a"}],
            (
                "case X, step 2, resume a: expected no error, "
                "actual StepError(\"sequence 'a' is not preempted\")"
            ),
        ),
        (
            [{"admit": "a", "tokens": "1*40", "refused": "NeverFits", "facts": {"need": 9}}],
            "case X, step 1, admit a, NeverFits.need: expected 9, actual 10",
        ),
        (
            [ADMIT, {"expect": {"stats": {"lives": 0}}}],
            "case X, step 2, expect, stats.lives: expected 0, actual nothing named lives",
        ),
    ],
)
def test_a_wrong_expectation_is_told_in_words(steps, words):
    """Case, step, what was compared, and both sides; the first that does not hold."""
    assert words == str(failure(*steps, {"expect": {"stats": {"live": 99}}}))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([{"admot": "a"}], "step 1, admot: expected a verb of admit, peek, run"),
        ([{"gives": 4}], "step 1, gives: expected a verb of admit"),
        ([ADMIT, RUN | {"refuse": "OutOfPages"}], "actual got an unexpected keyword argument"),
        ([{"admit": "a"}], "words that admit takes, actual missing a required"),
        ([RUN], "step 1, run a: expected a sequence of [], actual a"),
        ([ADMIT, {"fork": "a", "into": ["a"]}], "step 2, fork a: expected a name not in use"),
        ([{"commit": None}], "step 1, commit: expected an open step, actual none"),
        (
            [{"admit": "a", "tokens": "0-4"}],
            "step 1, admit a: expected no error, actual ValueError",
        ),
    ],
)
def test_a_step_that_cannot_be_read_is_told(steps, words):
    """A slip in the data never passes for a check."""
    assert words in str(failure(*steps))


def test_a_case_that_cannot_be_read_is_told():
    """Words no case has, and plans that are none, are step 0."""
    unknown, wrong = failure(option={}), failure(plan={"pages": 4})

    assert (0, 0) == (unknown.step, wrong.step)
    assert "actual option" in str(unknown)
    assert "expected a cache, actual KeyError('page_size')" in str(wrong)


class Leaky(Cache):
    """Keeps what is released to it."""

    def release(self, sequence):
        """Nothing."""


class Unlawful(Cache):
    """Breaks a law when it is stepped."""

    stepped = False

    def extend(self, *arguments, **options):
        """The break."""
        self.stepped = True
        return super().extend(*arguments, **options)

    def check(self):
        """The law."""
        if self.stepped:
            raise IntegrityError("pages", 1, 2)


class Careless(Cache):
    """Counts a prompt before it refuses it."""

    def admit(self, tokens, **options):
        """The count."""
        self._prompt_tokens += len(tokens)
        return super().admit(tokens, **options)


class Stuck(Cache):
    """Its rows never come on."""

    def commit(self, step, *_, **__):
        """Keeps nothing."""
        return super().commit(step, kept=[0] * len(step.sequences))


@pytest.mark.parametrize(
    ("cache", "steps", "words"),
    [
        (Leaky, [ADMIT, RUN], "step 3, end, stats.live: expected 0, actual 2"),
        (Unlawful, [ADMIT, {"extend": "a"}], "step 2, extend a: expected check() to pass"),
        (Careless, [ADMIT | {"tokens": "1*99", "refused": "NeverFits"}], "stats after the refusal"),
        (
            Stuck,
            [ADMIT, RUN],
            "step 2, run a, whether any row came on: expected True, actual False",
        ),
    ],
)
def test_a_cache_of_ones_own_is_found_out(cache, steps, words):
    """Leaks, broken laws, refusals that change something, steps that lead nowhere."""
    assert words in str(failure(*steps, make_cache=cache))


def test_options_reach_the_cache():
    """The plan is octavo's, the options are whatever the cache takes."""
    seen = []

    def make_cache(plan, **options):
        seen.append((plan.page_size, options))
        return Cache(plan)

    run_case({"id": "X", "plan": SMALL, "options": {"mine": 1}, "steps": []}, make_cache)

    assert [(4, {"mine": 1})] == seen


def test_tokens_are_read():
    """Lists, single tokens, ranges with both ends, repetitions."""
    assert [0, 1, 2, 9, 1, 1] == read_tokens("0..2 9 1*2")
    assert [[7], [3, 4], []] == [read_tokens(told) for told in (7, [3, 4], "")]
