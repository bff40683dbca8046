"""A web server (aiohttp) that checks its token as VS Code does. It serves at the root, takes the token from a cookie,
named on the command line, or from `?tkn=`, and sets the cookie again with each page, whose script reads it."""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web

TOKEN, COOKIE = os.environ["FAIRLOT_SESSION_TOKEN"], sys.argv[1]
routes = web.RouteTableDef()


@web.middleware
async def with_token(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if hmac.compare_digest(request.query.get("tkn", ""), TOKEN):
        raise web.HTTPFound("/", headers={"Set-Cookie": f"{COOKIE}={TOKEN}; SameSite=Lax"})
    if not hmac.compare_digest(request.cookies.get(COOKIE, ""), TOKEN):
        return web.Response(status=403, text="Forbidden.")
    return await handler(request)


@routes.get("/socket")
async def socket(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        await ws.send_str(message.data)
    return ws


@routes.get("/{rest:.*}")
async def page(request: web.Request) -> web.Response:
    answer = web.Response(text=f"VS Code at {request.raw_path}, cookies {sorted(request.cookies)}")
    answer.set_cookie(COOKIE, TOKEN, path="/", samesite="Lax")
    return answer


app = web.Application(middlewares=[with_token])
app.add_routes(routes)
web.run_app(app, host="127.0.0.1", port=int(os.environ["PORT"]), print=None)
