"""A web server (aiohttp) that runs as the program of a test session. It echoes requests, and misbehaves on request."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import os

from aiohttp import WSMsgType, web

BASE = os.environ["FAIRLOT_BASE_URL"]
RIGHT = f"token {os.environ['FAIRLOT_SESSION_TOKEN']}"
told: dict[str, object] = {"left": 0, "closed": "", "sent": 0}
go = asyncio.Event()
routes = web.RouteTableDef()


@routes.route("*", f"{BASE}echo{{rest:.*}}")
async def echo(request: web.Request) -> web.Response:
    digest = hashlib.sha256(await request.read()).hexdigest()
    return web.Response(
        headers={"X-Method": request.method, "X-Path": request.raw_path, "X-Digest": digest}, body=b"echo"
    )


@routes.get(f"{BASE}headers")
async def headers(request: web.Request) -> web.Response:
    lines = []
    for name, value in request.headers.items():
        is_right = name.lower() == "authorization" and hmac.compare_digest(value, RIGHT)
        lines.append(f"{name.lower()}: {'token right' if is_right else value}")
    return web.Response(text="\n".join(lines))


@routes.get(f"{BASE}cookies")
async def cookies(request: web.Request) -> web.Response:
    answer = web.Response(
        headers={"Strict-Transport-Security": "max-age=9", "Connection": "X-Hop", "X-Hop": "1"}
    )
    answer.headers["Content-Security-Policy"] = "default-src 'self'"
    answer.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    for line in (
        "one=1; Path=/; Domain=localhost; HttpOnly",
        f"two=2; Path={BASE}deep",
        "fairlot_visit=stolen; Path=/",
        "__Host-fairlot_visit=stolen; Path=/; Secure",
        "three=3",
    ):
        answer.headers.add("Set-Cookie", line)
    return answer


@routes.get(f"{BASE}long/{{lines}}/{{size}}")
async def long(request: web.Request) -> web.Response:
    """Returns a response with `lines` headers of `size` characters each. The URL contains both numbers."""
    lines, size = int(request.match_info["lines"]), int(request.match_info["size"])
    return web.Response(headers={f"X-Long-{number}": "x" * size for number in range(lines)}, text="long")


@routes.get(f"{BASE}compressed")
async def compressed(request: web.Request) -> web.Response:
    return web.Response(body=gzip.compress(b"text" * 100), headers={"Content-Encoding": "gzip"})


@routes.get(f"{BASE}status/{{code}}")
async def status(request: web.Request) -> web.Response:
    return web.Response(status=int(request.match_info["code"]))


@routes.get(f"{BASE}redirect")
async def redirect(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "elsewhere?x=1"})


@routes.get(f"{BASE}big/{{size}}")
async def big(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": request.match_info["size"]})
    await answer.prepare(request)
    for done in range(0, int(request.match_info["size"]), 2**16):
        told["sent"] = done
        await answer.write(bytes(2**16))
    return answer


@routes.post(f"{BASE}count")
async def count(request: web.Request) -> web.Response:
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
    return web.Response(text=str(size))


@routes.get(f"{BASE}drip")
async def drip(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"first\n")
    await go.wait()
    await answer.write(b"second\n")
    try:
        while True:
            await answer.write(b".")
            await asyncio.sleep(0.05)
    except (ConnectionError, asyncio.CancelledError):
        told["left"] = 1
        raise


@routes.get(f"{BASE}go")
async def let_go(request: web.Request) -> web.Response:
    go.set()
    return web.Response()


@routes.get(f"{BASE}cut")
async def cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "100"})
    await answer.prepare(request)
    await answer.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return answer


@routes.get(f"{BASE}nothing")
async def nothing(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@routes.get(f"{BASE}{{what:left|closed|sent}}")
async def tell(request: web.Request) -> web.Response:
    return web.Response(text=str(told[request.match_info["what"]]))


@routes.get(f"{BASE}socket")
async def socket(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(protocols=["v1"], max_msg_size=0)
    await ws.prepare(request)
    async for message in ws:
        if message.type is WSMsgType.TEXT and message.data.startswith("close "):
            await ws.close(code=int(message.data.split()[1]))
        elif message.type is WSMsgType.TEXT:
            await ws.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await ws.send_bytes(message.data)
    told["closed"] = ws.close_code
    return ws


@routes.get("/")
@routes.get(f"{BASE}{{rest:.*}}")
async def well(request: web.Request) -> web.Response:
    return web.Response(text="well")


app = web.Application(client_max_size=2**31)
app.add_routes(routes)
web.run_app(app, host="127.0.0.1", port=int(os.environ["PORT"]), handler_cancellation=True, print=None)
