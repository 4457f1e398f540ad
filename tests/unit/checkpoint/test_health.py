import json

import pytest

from maxtrain.checkpoint.health import Health, Probation, Verdict, first_verdict

STEPS = {"c": (True, False), "f": (False, True), "e": (False, False)}
"""Clean, failed and empty steps."""


def follow(steps: str, begin: Probation | None = None, start: int = 0) -> Probation:
    """Probation after these steps; three clean ones prove."""
    probation = begin or Probation()
    for step, (clean, failed) in enumerate((STEPS[letter] for letter in steps), start + 1):
        probation = probation.after(step, clean=clean, failed=failed, healthy_after=3)
    return probation


@pytest.mark.parametrize(
    ("steps", "saved", "health"),
    [
        ("", 0, Health.PROVISIONAL),
        ("cc", 0, Health.PROVISIONAL),
        ("ccc", 0, Health.HEALTHY),
        ("ccc", 1, Health.PROVISIONAL),
        ("cccccc", 3, Health.HEALTHY),
        # A skip starts the count again, for the states before it and for the one at it, but does no damage.
        ("ccfcc", 0, Health.PROVISIONAL),
        ("ccfccc", 0, Health.HEALTHY),
        ("ccfccc", 3, Health.HEALTHY),
        ("ccecc", 0, Health.PROVISIONAL),
        # What is proven stays so, whatever comes.
        ("cccff", 0, Health.HEALTHY),
        ("cccffcc", 0, Health.HEALTHY),
        # Two failed steps in a row condemn what is not proven; clean ones in between acquit it, empty ones do not.
        ("ccccff", 1, Health.HEALTHY),
        ("ccccff", 2, Health.UNHEALTHY),
        ("ccccff", 5, Health.UNHEALTHY),
        ("cccfcf", 2, Health.PROVISIONAL),
        ("cccfef", 2, Health.UNHEALTHY),
        ("ccceee", 2, Health.PROVISIONAL),
        ("ff", 0, Health.PROVISIONAL),
        ("ff", 1, Health.UNHEALTHY),
    ],
)
def test_the_verdict_follows_from_the_steps(steps, saved, health):
    assert follow(steps).verdict(saved, max_skips=2).health == health


@pytest.mark.parametrize("cut", range(10))
def test_probation_goes_on_where_it_stood(cut):
    steps = "cccfccfecc"
    assert follow(steps[cut:], Probation(**follow(steps[:cut])._asdict()), cut) == follow(steps)


def test_the_first_verdict_is_by_what_the_state_is():
    assert first_verdict({}) == first_verdict({"finite": True}) == Verdict(Health.PROVISIONAL, "")
    assert first_verdict({"finite": False}).health == Health.UNHEALTHY


def test_a_verdict_of_another_form_is_none():
    assert Verdict.parse({"health": "healthy", "reason": "why", "more": 1}) == Verdict(Health.HEALTHY, "why")
    for values in ('{"health": "fine"}', '{"health": true}', '{"health": []}', '{"healthy": true}'):
        assert Verdict.parse(json.loads(values)) is None
