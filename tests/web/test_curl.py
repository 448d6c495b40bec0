"""The command lines of the documentation, run as they are printed there."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.fixtures.scripted_sessions import ScriptedSessions
from tests.fixtures.session_web import TOKEN, web_serving

from superfluid.config import Secret
from superfluid.web.token import write_token

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

SCRIPT = r"""
TOKEN=$(cat {directory}/web-token)
rpc() {{
  curl -s http://{address}/web/rpc -H 'content-type: application/json' \
    -H "authorization: Bearer $TOKEN" -H "x-superfluid-csrf: $TOKEN" -d "$1"; echo
}}
rpc '{{"Create":{{"parent":null,"params":{{"temperature":0.7,"top_p":0.95,"min_p":0.0,"top_k":0,"seed":1}}}}}}'
rpc '{{"AppendMessage":{{"session":1,"role":1,"text":"Name three rivers."}}}}'
curl -sN http://{address}/web/stream -H 'content-type: application/json' \
  -H "authorization: Bearer $TOKEN" -H "x-superfluid-csrf: $TOKEN" \
  -d '{{"session":1,"max_tokens":256}}'
rpc '"Tree"'
"""


async def run_script(script: str) -> str:
    process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(20):
        output, _ = await process.communicate()
    return output.decode()


async def test_command_lines_of_the_documentation_work_as_printed(tmp_path: Path) -> None:
    api = ScriptedSessions()
    api.script = ["Rhine", ", Rhône"]
    write_token(tmp_path, Secret(TOKEN))
    async with web_serving(api) as web:
        output = await run_script(SCRIPT.format(directory=tmp_path, address=web.address))
    lines = output.splitlines()
    assert lines[0] == '{"Created":{"session":1}}'
    assert lines[1].startswith('{"Committed":{"event":{"event_id":1,')
    stream = [line for line in lines[2:-1] if line]
    assert all(line.startswith("data: ") for line in stream)
    assert stream[0].startswith('data: {"committed":{"event_id":2,')
    assert stream[-2:] == ['data: {"done":{"tokens_generated":2,"finish":1,"warm_prefix":0}}', "data: [DONE]"]
    assert lines[-1] == '{"Tree":{"nodes":[[1,null,0]]}}'


async def test_curl_that_is_interrupted_cancels_its_generation() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web:
        await run_script(
            SCRIPT.split("curl -sN")[0].replace("$(cat {directory}/web-token)", TOKEN).format(address=web.address)
        )
        headers = [part for name, value in web.headers.items() for part in ("-H", f"{name}: {value}")]
        body = '{"session":1,"max_tokens":256}'
        process = await asyncio.create_subprocess_exec(
            "curl", "-sN", f"http://{web.address}/web/stream", *headers, "-d", body
        )
        async with asyncio.timeout(30):
            turn = await api.turns.get()
            process.terminate()
            await turn.cancelled.wait()
            await process.wait()


async def test_curl_that_waits_for_permission_to_send_a_large_body_gets_it(tmp_path: Path) -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web:
        body = tmp_path / "body"
        body.write_bytes(b'{"SetLogLevel":{"directive":"' + b"x" * 3_000_000 + b'"}}')
        script = (
            f"curl -s http://{web.address}/web/rpc -H 'authorization: Bearer {TOKEN}' "
            f"-H 'x-superfluid-csrf: {TOKEN}' -H 'expect: 100-continue' --data-binary @{body}"
        )
        assert await run_script(script) == '"Ack"'
    assert len(api.level) == 3_000_000
