"""The responses of this server: those that are being made, and those that are kept (store.py).

Refuses (NotFound) a response of another key exactly as one that never was. Invariant: a response is live from the
moment a client can know its id until it is in the store, so that whoever knows the id finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.errors import BadRequest, NotFound
from octavo.server.config import ServerConfig
from octavo.server.limits import MAX_MESSAGES, Limits
from octavo.server.responses_api.items import Kept, response_of

if TYPE_CHECKING:
    from octavo.server.responses_api.call import ResponseCall
    from octavo.server.responses_api.store import ResponseStore, Stored

_encoder = msgspec.json.Encoder()


class Book:
    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigError where the file cannot be used."""
        self._config = config
        self._store: ResponseStore | None = None
        self._live: dict[str, ResponseCall] = {}
        self._is_closed = False
        if config.response_store_path is not None:
            self._open()

    @property
    def keeps(self) -> bool:
        return self._config.response_store_entries > 0

    def _open(self) -> ResponseStore:
        """Memory is taken when the first one comes."""
        if self._store is None:
            from octavo.server.responses_api.store import ResponseStore

            config = self._config
            self._store = ResponseStore(
                config.response_store_path,
                max_entries=config.response_store_entries,
                max_bytes=config.response_store_bytes,
            )
        return self._store

    def add(self, response: ResponseCall) -> None:
        self._live[response.id] = response

    def keep(self, response: ResponseCall, previous: str | None, given: bytes) -> asyncio.Future[bool]:
        """Whether it is kept. It is on its way when this returns. `given`: its input as JSON."""
        if self._is_closed:
            kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            kept.set_result(False)
        else:
            from octavo.server.responses_api.store import Stored

            row = Stored(response.id, previous, _encoder.encode(response.response()), given)
            kept = self._open().put(row, response.owner)
        kept.add_done_callback(lambda _: self._live.pop(response.id, None))
        return kept

    def live(self, response_id: str, owner: str) -> ResponseCall | None:
        found = self._live.get(response_id)
        return found if found is not None and found.owner == owner else None

    async def stored(self, response_id: str, owner: str) -> Stored:
        """Raises NotFound."""
        found = await self._open().get(response_id, owner) if self.keeps else None
        if found is None:
            raise not_found(response_id)
        return found

    async def delete(self, response_id: str, owner: str) -> None:
        """Raises NotFound."""
        if not self.keeps or not await self._open().delete(response_id, owner):
            raise not_found(response_id)

    def check_room(self, given: bytes) -> None:
        """Raises BadRequest for an input that could never be kept."""
        limit = self._config.response_store_bytes
        if len(given) >= limit:
            raise BadRequest(
                f"the input takes {len(given)} bytes, the store of responses holds {limit}; send store: false, or "
                "start the server with a larger --response-store-bytes",
                param="store",
            )

    async def earlier(self, response_id: str | None, owner: str, limits: Limits) -> list[Kept]:
        """What was said up to the end of a response. Raises BadRequest."""
        if response_id is None:
            return []
        param = "previous_response_id"
        if self.live(response_id, owner) is not None:
            raise BadRequest(f"{param} is a response that is still in progress; wait for its end", param=param)
        if not self.keeps:
            raise _previous_missing()
        from octavo.server.responses_api.store import Broken, TooMuch

        try:
            rows = await self._open().conversation(
                response_id, owner, max_entries=MAX_MESSAGES, max_bytes=limits.max_body_bytes
            )
        except Broken as error:
            raise _previous_missing(is_older=error.id != response_id) from None
        except TooMuch:
            raise BadRequest(
                f"{param} goes back over more than {MAX_MESSAGES} responses or {limits.max_body_bytes} bytes; begin a "
                "new conversation",
                param=param,
            ) from None
        if sum(row.num_bytes for row in rows) > limits.large_body_bytes:
            return await asyncio.to_thread(_items_of, rows)
        return _items_of(rows)

    async def referenced(self, ids: Iterable[str], owner: str, limits: Limits) -> dict[str, Kept]:
        """The items with these ids, those that are there. Raises BadRequest."""
        wanted = set(ids)
        found: dict[str, Kept] = {}
        num_bytes = 0
        for response_id in {response_of(each) for each in wanted} if self.keeps else ():
            row = None if response_id is None else await self._open().get(response_id, owner)
            if row is None:
                continue
            num_bytes += row.num_bytes
            if num_bytes > limits.max_body_bytes:
                raise BadRequest(
                    f"the items referred to stand in responses of more than {limits.max_body_bytes} bytes; send them "
                    "whole",
                    param="input",
                )
            found |= {item["id"]: item for item in await asyncio.to_thread(_items_of, [row]) if item["id"] in wanted}
        return found

    async def close(self) -> None:
        """What is still being made is broken off; what is on its way is kept."""
        from octavo.server.errors import ServiceUnavailable

        tasks: list[asyncio.Task[None]] = []
        for response in list(self._live.values()):
            if response.task is not None:
                response.cut(ServiceUnavailable("the server was stopped"))
                response.task.cancel()
                tasks.append(response.task)
        if tasks:
            await asyncio.wait(tasks)
        self._is_closed = True
        if self._store is not None:
            await self._store.close()


def not_found(response_id: str) -> NotFound:
    return NotFound(
        f"there is no response {response_id[:128]!r}: it is unknown, deleted, or was made long ago",
        param="response_id",
        code="response_not_found",
    )


def _previous_missing(*, is_older: bool = False) -> BadRequest:
    what = "goes back to a response that is" if is_older else "is unknown, deleted, or"
    return BadRequest(
        f"previous_response_id {what} no longer stored; send the conversation as input",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _items_of(rows: Sequence[Stored]) -> list[Kept]:
    """Raises BadRequest where the last one broke."""
    items: list[Kept] = []
    response: dict[str, Any] = {}
    for row in rows:
        response = msgspec.json.decode(row.response)
        items += msgspec.json.decode(row.input)
        items += response["output"]
    if response.get("status") == "failed":
        raise BadRequest(
            "previous_response_id is a response that failed; go on from the one before it", param="previous_response_id"
        )
    return items
