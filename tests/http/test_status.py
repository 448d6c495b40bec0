"""``/slots`` and ``/props``."""

import msgspec
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel

from superfluid.config import HttpConfig, Secret
from superfluid.domain.request import QosClass, SamplingOverrides
from superfluid.domain.statistics import EngineRates, KeptPrefix, LaneStatus, TickStatus


def busy_front_end() -> FrontEnd:
    front = FrontEnd()
    front.statistics = msgspec.structs.replace(
        front.statistics,
        lanes_active=2,
        pool_blocks_used=3,
        pool_blocks_total=64,
        tick_wall_seconds=0.0123,
        queue_depth=(1, 0, 2, 0),
        lanes=(
            LaneStatus(0, 5, "decode", QosClass.INTERACTIVE, 30, 31, 20, 16, "disk"),
            LaneStatus(1, 6, "prefill", QosClass.BACKGROUND, 128, 1500, 1500, 0),
            LaneStatus(2, held_tokens=700, session=9),
            LaneStatus(3),
        ),
        tick=TickStatus(0.4, 64, 1, 0, 1),
        rates=EngineRates(80.6, 119.2),
        first_token_last_seconds=0.25,
        memory_prefixes=(KeptPrefix(8, 812), KeptPrefix(None, 300)),
        disk_prefixes=(KeptPrefix(9, 700),),
    )
    return front


async def test_slots_is_one_entry_with_the_tick_in_flight_and_the_last_rates() -> None:
    async with busy_front_end().client() as client:
        (entry,) = (await client.get("/slots")).json()
    assert entry["id"] == 0
    assert entry["model"] == entry["path"] == "scripted"
    assert entry["is_processing"] is True
    assert (entry["lanes_active"], entry["kv_pool_used"], entry["kv_pool_total"]) == (2, 3, 64)
    assert (entry["tick_wall_ms"], entry["tick_in_flight_ms"]) == (12, 400)
    plan = {name: value for name, value in entry.items() if name.startswith("tick_plan")}
    assert plan == {
        "tick_plan_prefill_tokens": 64,
        "tick_plan_prefill_lanes": 1,
        "tick_plan_decode_lanes": 0,
        "tick_plan_admits": 1,
        "tick_plan_retires": 0,
    }
    assert (entry["decode_tok_s"], entry["prefill_tok_s"], entry["ttft_last_ms"]) == (81, 119, 250)
    assert entry["queue_depth"]["foreground_agent"] == 2


async def test_slots_tells_each_lane_its_session_class_and_progress() -> None:
    async with busy_front_end().client() as client:
        (entry,) = (await client.get("/slots")).json()
    decoding, prefilling, free, empty = entry["lanes"]
    assert decoding == {
        "lane": 0,
        "state": "decode",
        "kv_tokens": 30,
        "session": 50,
        "class": "interactive_chat",
        "prompt_tokens": 20,
        "warm_tokens": 16,
        "warm_from": "disk",
        "generated_tokens": 11,
    }
    assert (prefilling["state"], prefilling["class"], prefilling["generated_tokens"]) == (
        "prefill",
        "background_agent",
        0,
    )
    assert free == {"lane": 2, "state": "free", "kv_tokens": 700, "session": 9}
    assert empty == {"lane": 3, "state": "free", "kv_tokens": 0, "session": None}


async def test_slots_lists_what_lies_in_host_memory_and_on_the_disk() -> None:
    async with busy_front_end().client() as client:
        (entry,) = (await client.get("/slots")).json()
    assert entry["host_cache"] == [{"session": 8, "tokens": 812}, {"session": None, "tokens": 300}]
    assert entry["disk_cache"] == [{"session": 9, "tokens": 700}]


async def test_slots_of_an_idle_server_has_zeros() -> None:
    async with FrontEnd().client() as client:
        (entry,) = (await client.get("/slots")).json()
    assert entry["is_processing"] is False
    assert entry["tick_in_flight_ms"] == 0
    assert entry["lanes"] == []


@pytest.mark.parametrize("route", ["/slots/0/save", "/slots/0/restore"])
async def test_saving_slots_by_hand_is_refused_as_retired(route: str) -> None:
    async with FrontEnd().client() as client:
        response = await client.post(route)
    assert response.status_code == 501
    assert response.json()["error"]["code"] == "route_retired"


async def test_props_describes_the_default_model() -> None:
    model = ScriptedModel()
    model.sampling_defaults = SamplingOverrides(temperature=0.5, top_k=7, repeat_penalty=0)
    async with FrontEnd(model).client() as client:
        page = (await client.get("/props")).json()
    window = model.facts.window_tokens
    assert (page["model"], page["default_model"], page["models"]) == ("scripted", "scripted", ["scripted"])
    assert page["loaded"] is True
    assert (page["max_context"], page["total_slots"]) == (window, 1)
    assert page["default_generation_settings"] == {
        "max_context": window,
        "n_ctx": window,
        "n_predict": window,
        "max_tokens": window,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 7,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
    }
    assert page["server"] == "superfluid"
    assert page["max_request_bytes"] == 104_857_600
    assert page["capabilities"] == {"chat": True, "audio": "text only"}
    assert page["chat_template"] == "{{ messages }}"
    assert page["kv_cache"] == {"bits": 16, "dtype": "f16"}
    assert page["modalities"] == {"vision": False, "audio": False}


async def test_props_without_defaults_names_no_sampling() -> None:
    model = ScriptedModel()
    model.default_max_tokens = 99
    async with FrontEnd(model).client() as client:
        settings = (await client.get("/props")).json()["default_generation_settings"]
    assert set(settings) == {"max_context", "n_ctx", "n_predict", "max_tokens"}
    assert settings["max_tokens"] == 99


async def test_props_of_a_model_that_is_not_loaded_leaves_out_what_only_a_loaded_one_knows() -> None:
    async with FrontEnd(ScriptedModel(), ScriptedModel(model_id="other", is_ready=False)).client() as client:
        page = (await client.get("/props?model=other&autoload=0")).json()
    assert (page["model"], page["default_model"], page["loaded"]) == ("other", "scripted", False)
    assert page["capabilities"] is None
    assert not {"chat_template", "kv_cache"} & page.keys()


async def test_props_of_an_unknown_model_is_refused() -> None:
    async with FrontEnd().client() as client:
        response = await client.get("/props?model=nobody")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("route", ["/props", "/slots"])
async def test_status_pages_need_the_key(route: str) -> None:
    async with FrontEnd(config=HttpConfig(api_key=Secret("k"))).client() as client:
        assert (await client.get(route)).status_code == 401
        assert (await client.get(route, headers={"x-api-key": "k"})).status_code == 200
