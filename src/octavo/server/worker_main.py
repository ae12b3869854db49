"""A worker, started by worker_pool.py with its end of a socket pair: renders chat templates or compiles grammars until
its socket closes.

Refuses what takes too much: memory (address space), processor time of one piece of work, output. It holds no key, opens
no file and no network connection; the server kills it when it is late. One piece of work at a time.
"""

from __future__ import annotations

import resource
import socket
import sys

from octavo.errors import OctavoError
from octavo.loading.chat_template import ChatTemplate
from octavo.server import worker_frames as frames


class Worker:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._template: ChatTemplate | None = None
        self._max_output_bytes = 0
        self._cpu_seconds = 0

    def run(self) -> None:
        """Until the server closes its end."""
        while (body := self._receive()) is not None:
            self._socket.sendall(frames.encode(self._answer(frames.decode_to_worker(body))))

    def _answer(self, message: frames.ToWorker) -> frames.FromWorker:
        try:
            if isinstance(message, frames.Setup):
                return self._set_up(message)
            self._allow_seconds()
            if isinstance(message, frames.CheckGrammar):
                from octavo.constraints.grammar import check_grammar  # here: a worker that renders is ready sooner

                ready = check_grammar(message.spec)
                return frames.Rendered("" if ready == message.spec else ready.source)
            return self._render(message)
        except OctavoError as error:
            return frames.Refused(error.message)
        except MemoryError:
            return frames.Refused("it takes too much memory")
        except RecursionError:
            return frames.Refused("it nests too deeply")
        except Exception as error:  # a template can raise anything; only the kind is told
            return frames.Refused(f"it broke with {type(error).__name__}")

    def _set_up(self, setup: frames.Setup) -> frames.FromWorker:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes, setup.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        self._max_output_bytes = setup.max_output_bytes
        self._cpu_seconds = setup.cpu_seconds
        if setup.source is not None:
            self._template = ChatTemplate(setup.source, setup.bos_token, setup.eos_token)
        return frames.Rendered("")

    def _render(self, request: frames.Render) -> frames.FromWorker:
        assert self._template is not None, "Setup comes first, with a template"
        text = self._template.render(
            request.messages, add_generation_prompt=request.add_generation_prompt, **request.kwargs
        )
        if len(text.encode("utf-8")) > self._max_output_bytes:
            return frames.Refused(f"its output is above {self._max_output_bytes} bytes")
        return frames.Rendered(text)

    def _allow_seconds(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = int(usage.ru_utime + usage.ru_stime)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (used + self._cpu_seconds + 1, hard))  # SIGXCPU ends the process

    def _receive(self) -> bytes | None:
        header = self._exactly(frames.HEADER_BYTES)
        return None if header is None else self._exactly(frames.body_length(header))

    def _exactly(self, size: int) -> bytes | None:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self._socket.recv(min(size - len(chunks), 2**20))
            if not chunk:
                return None
            chunks += chunk
        return bytes(chunks)


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        Worker(sock).run()
