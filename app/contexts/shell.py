"""What every page has: a title, its place, its event topics, the same data as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Link:
    """A word that leads somewhere."""

    text: str
    href: str
    is_current: bool = False
    title: str = ""


@dataclass(frozen=True)
class Pill:
    """A state in a word; `tone` is good, warn, bad or quiet."""

    text: str
    tone: str = "quiet"
    title: str = ""


@dataclass(frozen=True)
class Fact:
    """A line of a fact sheet."""

    name: str
    text: str
    note: str = ""
    href: str = ""
    live: str = ""  # the event field that keeps it current


@dataclass(frozen=True)
class Snippet:
    """Code that runs as copied."""

    key: str
    title: str
    language: str
    code: str


@dataclass(frozen=True)
class Empty:
    """Nothing here yet, and what to do about it."""

    title: str
    text: str
    snippets: list[Snippet] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The frame of a page."""

    template: ClassVar[str]
    title: str
    section: str = ""
    crumbs: list[Link] = field(default_factory=list)
    topics: str = ""
    json_href: str = ""
    data: Any = field(default_factory=dict, repr=False)  # what the page's `.json` answers


@dataclass(frozen=True, kw_only=True)
class ErrorPage(Page):
    """Something was refused or is not there."""

    template: ClassVar[str] = "error.html"
    status: int
    detail: str
    code: str = ""
    hint: str = ""
    request_id: str = ""


def error_page(problem: Mapping[str, Any]) -> ErrorPage:
    """The page of a problem+json document."""
    return ErrorPage(
        title=str(problem.get("title") or "Error"),
        status=int(problem.get("status", 500)),
        detail=str(problem.get("detail") or problem.get("title") or ""),
        code=str(problem.get("code") or ""),
        hint=str(problem.get("hint") or ""),
        request_id=str(problem.get("request_id") or ""),
        data=dict(problem),
    )


@dataclass(frozen=True, kw_only=True)
class LoginPage(Page):
    """The token is asked for once and becomes a cookie."""

    template: ClassVar[str] = "login.html"
    error: str = ""


def login_page(*, error: str = "") -> LoginPage:
    """The sign-in form; it is sent to its own address, which says where to go on to."""
    return LoginPage(title="Sign in", error=error)


@dataclass(frozen=True, kw_only=True)
class DocsPage(Page):
    """The API reference."""

    template: ClassVar[str] = "docs.html"
    openapi_href: str
