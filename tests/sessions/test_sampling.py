"""Which place's sampling parameters win."""

from superfluid.domain.request import SamplingOverrides as Place
from superfluid.sessions.sampling import merge_overrides, resolve_sampling


def test_temperature_request_beats_flags_beats_model() -> None:
    model, flags, request = Place(temperature=0.3), Place(temperature=0.5), Place(temperature=0.0)
    assert resolve_sampling(request, flags, model, fresh_seed=1).temperature == 0.0
    assert resolve_sampling(Place(), flags, model, fresh_seed=1).temperature == 0.5
    assert resolve_sampling(Place(), Place(), model, fresh_seed=1).temperature == 0.3
    assert resolve_sampling(Place(), fresh_seed=1).temperature == 1.0


def test_cuts_come_from_one_place_together() -> None:
    resolved = resolve_sampling(Place(top_p=0.5), Place(top_k=3, min_p=0.1), fresh_seed=1)
    assert (resolved.top_p, resolved.top_k, resolved.min_p) == (0.5, 0, 0.0)


def test_cuts_nobody_names_are_top_k_40_when_sampled_and_none_when_greedy() -> None:
    assert resolve_sampling(Place(), fresh_seed=1).top_k == 40
    assert resolve_sampling(Place(temperature=0.0), fresh_seed=1).top_k == 0


def test_top_k_zero_named_stays_zero() -> None:
    assert resolve_sampling(Place(top_k=0), Place(top_k=40), fresh_seed=1).top_k == 0


def test_seed_named_is_kept_even_zero_and_fresh_otherwise() -> None:
    assert resolve_sampling(Place(seed=0), fresh_seed=9).seed == 0
    assert resolve_sampling(Place(), fresh_seed=9).seed == 9


def test_merged_places_resolve_as_the_places_do() -> None:
    places = (Place(temperature=0.2), Place(top_k=7, repeat_penalty=1.1), Place(top_p=0.9, seed=4))
    assert resolve_sampling(merge_overrides(*places), fresh_seed=1) == resolve_sampling(*places, fresh_seed=1)
