"""The servers Flashdeck is compared with: `python -m benchmarks.peers bare FILE --port N`."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from app.process import prepare
from app.settings import Settings


def bare(file: str) -> Starlette:
    """Return an app that answers with the bytes of a file."""
    body = Path(file).read_bytes()

    async def answer(_) -> Response:
        return Response(body, media_type="application/x-safetensors")

    return Starlette(routes=[Route("/", answer)])


def inline(work: str) -> FastAPI:
    """Return an app that draws, gathers and encodes in its handler, on a ring like the service's."""
    from benchmarks.http import LENGTH, WORKS, batch
    from fbxcore import wire
    from fbxcore.buffers.layout import layout_of
    from fbxcore.live.rings.ring import Ring
    from fbxcore.spec import parse_spec

    spec = next(spec for name, spec in WORKS.values() if name == work)
    sizes = {"max_length": LENGTH, "min_length": 256, "sample_batch_size": 256}
    ring = Ring(layout_of("item", sizes), parse_spec(spec))
    ring.add([{name: x[None] for name, x in batch(spec, LENGTH).items()}])
    app = FastAPI()

    @app.get("/")
    async def sample(batch_size: int = 256) -> Response:
        arrays, _ = ring.sample(batch_size, secrets.randbits(63))
        body, _ = wire.encode(arrays, "safetensors")
        return Response(body, media_type="application/x-safetensors")

    return app


if __name__ == "__main__":
    kind, argument, _, port = sys.argv[1:]
    prepare(Settings())
    served = {"bare": bare, "inline": inline}[kind](argument)
    uvicorn.run(served, port=int(port), log_level="warning", access_log=False)
