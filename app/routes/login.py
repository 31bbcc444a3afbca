"""The token, exchanged once for a cookie that scripts cannot read."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.dependencies import SettingsDep
from app.errors import status_of
from app.routes._body import read_body
from app.security import COOKIE, check_next, check_token
from fbxcore.errors import FbxError

router = APIRouter(include_in_schema=False)
MAX_FORM_BYTES = 8192
_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Log in · Flashdeck</title>
<meta name="viewport" content="width=device-width"></head>
<body><main><h1>Flashdeck</h1>{note}
<form method="post"><label>Token <input name="token" type="password" autocomplete="current-password" required
autofocus></label> <button>Log in</button></form></main></body></html>"""


@router.get("/login")
async def show_login(request: Request) -> Response:
    """Show the form."""
    return _form(request, None, 200)


@router.post("/login")
async def login(request: Request, settings: SettingsDep) -> Response:
    """Take the token and set the cookie."""
    form = parse_qs(bytes(await read_body(request, MAX_FORM_BYTES)).decode("latin-1"), keep_blank_values=True)
    try:
        session = check_token(form.get("token", [""])[0], settings)
    except FbxError as error:
        return _form(request, str(error), status_of(error))
    target = settings.root_path + check_next(request.query_params.get("next"))
    answer = RedirectResponse(target, status_code=303)
    answer.set_cookie(
        COOKIE,
        session,
        max_age=30 * 24 * 3600,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def logout(settings: SettingsDep) -> Response:
    """Forget the cookie."""
    answer = RedirectResponse(f"{settings.root_path}/login", status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return answer


def _form(request: Request, error: str | None, status: int) -> Response:
    page = getattr(request.app.state, "login_page", None)
    if page is not None:
        return page(request, error, status)
    note = "<p role='alert'>That is not this service's token.</p>" if error else ""
    return HTMLResponse(_FORM.format(note=note), status)
