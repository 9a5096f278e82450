"""In which order the server does what visitors ask for, what it keeps of them, and for how long."""

import asyncio
import gc
import sys
import time
import types
import weakref
from typing import Any

import gradio as gr
import pytest
import torch
from gradio.state_holder import SessionState, StateHolder
from torch import Tensor

from vbmem.app.events import EVENT, Page
from vbmem.app.page import build
from vbmem.app.session import Session, Visit
from vbmem.app.shared import open_model
from vbmem.app.visitors import turns

MODEL = "cifar10-mixture"
SHARED = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.FrameType, gr.Blocks)


def built() -> gr.Blocks:
    return build(MODEL, [MODEL], None, typed_models=False)


async def act(page: gr.Blocks, state: SessionState, element: str, event: str, *values: Any) -> None:
    """An event of an element."""
    target = (next(number for number, block in page.blocks.items() if block.elem_id == element), event)
    handler = next(number for number, handler in page.fns.items() if target in handler.targets)
    await page.process_api(handler, [None, *values], state)


async def arrive(page: gr.Blocks, state: SessionState) -> Visit:
    """Someone opens the page."""
    handler = next(number for number, handler in page.fns.items() if any(t[1] == "load" for t in handler.targets))
    await page.process_api(handler, [], state)
    return next(value for value in state.state_data.values() if isinstance(value, Visit))


def kept(root: object, *others: object) -> int:
    """The bytes of all that is reached from one thing and not from others."""

    def reached(roots: list[Any], beyond: dict[int, Any]) -> dict[int, Any]:
        seen: dict[int, Any] = {}
        while roots:
            one = roots.pop()
            if id(one) not in seen and id(one) not in beyond and not isinstance(one, SHARED):
                seen[id(one)] = one
                roots += gc.get_referents(one)
        return seen

    things = reached([root], reached(list(others), {})).values()
    storages = [thing.untyped_storage() for thing in things if isinstance(thing, Tensor)]
    numbers = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(numbers.values()) + sum(map(sys.getsizeof, things))


def slowly_read() -> gr.Number:
    """A number that takes a while to reach its handler."""

    def preprocess(payload: float) -> float:
        time.sleep(0.2)
        return payload

    number = gr.Number()
    number.preprocess = preprocess  # type: ignore[method-assign, assignment]
    return number


def test_what_is_asked_for_first_is_done_first_even_if_it_takes_longer_to_read() -> None:
    done: list[tuple[str, float]] = []

    async def visit() -> None:
        with Page() as page:
            slow, fast = slowly_read(), gr.Number()
            slow.input(lambda value: done.append(("slow", value)), slow, **EVENT)
            fast.input(lambda value: done.append(("fast", value)), fast, **EVENT)
        first, second = page.fns.values()
        asked = [(first, 1, "me"), (second, 2, "me"), (second, 3, "you")]
        await asyncio.gather(
            *(
                page.process_api(function, [value], SessionState(page), session_hash=visitor)
                for function, value, visitor in asked
            )
        )

    asyncio.run(visit())
    assert done == [("fast", 3), ("slow", 1), ("fast", 2)]


def test_all_events_wait_in_one_line_of_which_gradio_takes_the_first() -> None:
    async def lines() -> set[str]:
        return {function.concurrency_id for function in built().fns.values()}

    assert len(asyncio.run(lines())) == 1


def test_whoever_asks_for_too_much_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "waiting", 1)

    async def visit() -> list[Any]:
        with Page() as page:
            slow = slowly_read()
            slow.input(lambda value: None, slow, **EVENT)
        (function,) = page.fns.values()
        asked = [page.process_api(function, [1], SessionState(page), session_hash="me") for _ in range(2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    answer, refusal = asyncio.run(visit())
    assert "data" in answer
    assert isinstance(refusal, gr.Error)
    assert "1 things are under way" in refusal.message


def test_half_a_megabyte_is_kept_of_a_visitor_who_has_seen_everything() -> None:
    async def visit() -> int:
        page = built()
        await arrive(page, state := SessionState(page))
        await act(page, state, "draw", "click", "a temple", 20)
        await act(page, state, "noise", "input", 2, 0.3, 0, 0)
        await act(page, state, "generated-size", "input", "samples", 16, 0, 10)
        return kept(state, page.blocks, open_model(MODEL))

    assert asyncio.run(visit()) < 500_000


def test_nothing_is_kept_of_visitors_beyond_the_capacity() -> None:
    async def visits() -> list[bool]:
        page, holder = built(), StateHolder()
        holder.set_blocks(page)
        holder.capacity = 2
        arrived = [weakref.ref(await arrive(page, holder[f"visitor {number}"])) for number in range(3)]
        gc.collect()
        return [visit() is not None for visit in arrived]

    assert asyncio.run(visits()) == [False, True, True]


def test_of_many_pictures_the_one_to_recall_is_kept_alone() -> None:
    model = open_model(MODEL)
    session = Session.written(model, torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    many = torch.zeros(1000, 3, 32, 32, dtype=torch.uint8)
    assert kept(session.picking(many[0]), model) < kept(session, model) + 10_000
