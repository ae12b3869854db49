"""S3: templates are code. Real worker processes, small limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import BadRequest, ModelFileError, QueueFull
from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE
from octavo.server import worker_pool
from octavo.server.caller import note_owner
from octavo.server.limits import Limits
from octavo.server.template_workers import TemplateWorkers
from support.http_site import MESSAGES, run

pytestmark = pytest.mark.security("S3")

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def workers(source: str, **limits: Any) -> TemplateWorkers:
    return TemplateWorkers(source, bos_token="<|bos|>", eos_token="<|eos|>", limits=Limits(**limits))


async def render(made: TemplateWorkers, messages: Any = MESSAGES, **kwargs: Any) -> str:
    return await made.render(messages, add_generation_prompt=True, kwargs=kwargs)


def pids(made: TemplateWorkers) -> set[int]:
    return {worker._process.pid for worker in made._pool._idle}


def test_it_renders_what_the_template_says_and_keeps_its_worker() -> None:
    async def go() -> None:
        made = workers(FAKE_CHAT_TEMPLATE + "{{ mood }}")
        await made.check()
        before = pids(made)
        for text in ("hello", "안녕 🙂", "{{ 7 * 7 }}", "x" * 100_000):
            expected = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\nglad"
            assert await render(made, [{"role": "user", "content": text}], mood="glad") == expected
        assert pids(made) == before
        await made.close()

    run(go())


def test_a_system_that_starts_no_process_costs_the_one_request_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        made = workers("ok")
        with monkeypatch.context() as patch:
            patch.setattr(worker_pool, "WORKER_COMMAND", ("/nowhere/python",))
            with pytest.raises(ModelFileError, match="for want of a process: the system starts none: no such file"):
                await made.check()
            for _ in range(Limits().num_render_workers + 1):
                with pytest.raises(ModelFileError, match="the system starts none"):
                    await render(made)
        assert await render(made) == "ok"
        await made.close()

    run(go())


def test_a_refusal_of_the_template_is_a_400_and_the_worker_goes_on() -> None:
    async def go() -> None:
        made = workers("{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}ok")
        with pytest.raises(BadRequest, match="one at a time"):
            await render(made, MESSAGES * 2)
        before = pids(made)
        assert await render(made) == "ok"
        assert pids(made) == before
        await made.close()

    run(go())


def test_a_worker_that_ended_while_idle_is_replaced() -> None:
    async def go() -> None:
        made = workers("ok")
        await made.check()
        worker = made._pool._idle[0]
        worker._process.kill()
        await worker._process.wait()
        assert await render(made) == "ok"
        await made.close()

    run(go())


def test_a_late_render_is_killed_and_holds_up_nobody_else() -> None:
    async def go() -> None:
        source = "{% if messages[0]['content'] == 'evil' %}" + ENDLESS + "{% endif %}ok"
        made = workers(source, render_timeout_seconds=0.5, num_render_workers=2)
        await made.check()
        evil = asyncio.create_task(render(made, [{"role": "user", "content": "evil"}]))
        for _ in range(5):
            assert await render(made) == "ok"
        assert not evil.done() or evil.exception()
        with pytest.raises(BadRequest, match=r"longer than 0\.5 seconds"):
            await evil
        assert await render(made) == "ok"
        await made.close()

    run(go())


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(x=['a' * 1000000]) %}{% for a in range(90000) %}{% set ns.x = ns.x + ['b' * 1000000 + a|string] %}{% endfor %}{{ ns.x|length }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ messages[0]['nothing']['more'] }}",
        "{{ undefined_function() }}",
        "{% include 'x' %}",
        "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
    ],
)
def test_a_hostile_template_is_an_error_and_no_crash(source: str) -> None:
    async def go() -> None:
        made = workers(source, render_timeout_seconds=10, render_memory_bytes=256 * 2**20)
        with pytest.raises((BadRequest, ModelFileError)) as caught:
            await render(made)
        assert "Traceback" not in caught.value.message
        assert "/" not in caught.value.message
        await made.close()

    run(go())


def test_the_output_is_bounded() -> None:
    async def go() -> None:
        made = workers("{% for a in range(1001) %}x{% endfor %}", max_rendered_bytes=1000)
        with pytest.raises(BadRequest, match="1000 bytes"):
            await render(made)
        await made.close()

    run(go())


def test_a_cancelled_render_leaves_no_worker_with_a_stale_answer() -> None:
    async def go() -> None:
        made = workers("{{ messages[0]['content'] }}", num_render_workers=1)
        await made.check()
        for number in range(5):
            task = asyncio.create_task(render(made, [{"role": "user", "content": "stale"}]))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await render(made, [{"role": "user", "content": "mine"}]) == "mine"
        await made.close()

    run(go())


def test_clients_that_come_and_leave_cost_no_worker() -> None:
    """A worker that is killed for each of them is a process to start for the next, and cheap to ask for."""

    async def go() -> None:
        made = workers("{{ messages[0]['content'] }}", num_render_workers=1)
        await made.check()
        before = pids(made)
        for _ in range(20):
            task = asyncio.create_task(render(made, [{"role": "user", "content": "x" * 100_000}]))
            while not made._pool._works:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await render(made) == MESSAGES[0]["content"]
        assert pids(made) == before
        await made.close()

    run(go())


def test_work_that_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.worker_pool.GRACE_SECONDS", 0.0)

    async def go() -> None:
        made = workers("{% if messages[0]['content'] == 'evil' %}" + ENDLESS + "{% endif %}ok", num_render_workers=1)
        await made.check()
        before = pids(made)
        evil = asyncio.create_task(render(made, [{"role": "user", "content": "evil"}]))
        while not made._pool._works:
            await asyncio.sleep(0)
        evil.cancel()
        assert await render(made) == "ok"
        assert pids(made) != before
        await made.close()

    run(go())


def test_a_key_does_not_wait_behind_all_that_another_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.worker_pool.MAX_WAITING", 20)

    async def go() -> None:
        made = workers("ok", num_render_workers=1)
        await made.check()
        order: list[str] = []

        async def ask(owner: str) -> None:
            note_owner(owner)
            await render(made)
            order.append(owner)

        evil = [asyncio.create_task(ask("evil")) for _ in range(21)]
        await asyncio.sleep(0)
        good = [asyncio.create_task(ask("good")) for _ in range(2)]
        with pytest.raises(QueueFull):
            await asyncio.create_task(ask("evil"))
        await asyncio.gather(*evil, *good)
        assert order[:5] == ["evil", "evil", "good", "evil", "good"]
        await made.close()

    run(go())


def test_close_leaves_no_process() -> None:
    async def go() -> None:
        made = workers("x")
        await made.check()
        assert pids(made)
        alive = pids(made)
        await made.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in alive)

    run(go())
