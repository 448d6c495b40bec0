import pytest

from superfluid.cli.chat.sampling import SamplingFlags, ServerFacts, chat_params, fresh_seed, read_facts


def test_facts_are_read_from_a_metrics_page() -> None:
    page = (
        "# HELP superfluid_model_info Names it.\n# TYPE superfluid_model_info gauge\n"
        'superfluid_model_info{model="a \\"b\\" \\\\c",engine="llama.cpp"} 1\n'
        "superfluid_context_tokens 8192\n"
        'superfluid_default_sampling{parameter="temperature"} 0.6\n'
        'superfluid_default_sampling{parameter="top_k"} 20\n'
        "superfluid_ticks_total 7\n"
    )
    assert read_facts(page) == ServerFacts('a "b" \\c', 8192, {"temperature": 0.6, "top_k": 20.0})


def test_facts_of_a_server_that_does_not_say_are_none() -> None:
    assert read_facts("superfluid_ticks_total 7\n") == ServerFacts()


@pytest.mark.parametrize(
    ("flags", "recommended", "expected"),
    [
        (SamplingFlags(), {}, (0.7, 0.95, 0.05, 40)),
        (SamplingFlags(), {"temperature": 0.2}, (0.2, 0.95, 0.05, 40)),
        (SamplingFlags(), {"top_k": 20.0}, (0.7, 1.0, 0.0, 20)),
        (SamplingFlags(temperature=0.0), {"temperature": 0.2, "top_p": 0.8}, (0.0, 0.8, 0.0, 0)),
        (SamplingFlags(min_p=0.1), {"top_p": 0.8, "top_k": 20.0}, (0.7, 1.0, 0.1, 0)),
    ],
)
def test_params_are_the_flags_over_the_model_over_the_chats_own(
    flags: SamplingFlags, recommended: dict[str, float], expected: tuple[float, float, float, int]
) -> None:
    params = chat_params(flags, recommended)
    assert (params.temperature, params.top_p, params.min_p, params.top_k) == expected


def test_seed_is_the_given_one_or_drawn() -> None:
    assert chat_params(SamplingFlags(seed=0), {}).seed == 0
    assert len({chat_params(SamplingFlags(), {}).seed for _ in range(10)}) == 10
    assert all(0 < fresh_seed() < 2**53 for _ in range(100))
