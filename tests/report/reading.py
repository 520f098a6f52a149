"""What the tests read from a page: its tables, its header and its figures."""

from __future__ import annotations

import base64
import json
import re
from contextlib import contextmanager
from html.parser import HTMLParser

import numpy as np

__all__ = ["Table", "decoded", "figures_of", "header_of", "opened"]


class Table(HTMLParser):
    """The cells of the sortable table of a page, and everything that looks like markup."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.rows, self.inside, self.text = [], [], False, None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.inside = dict(attributes).get("class") == "sortable"
        if self.inside and tag == "tr":
            self.rows.append([])
        if self.inside and tag in ("td", "th"):
            self.text = ""

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if self.inside and tag in ("td", "th"):
            self.rows[-1].append(self.text)
            self.text = None
        if tag == "table":
            self.inside = False


def figures_of(html):
    return json.loads(re.search(r'id="figure-data">(.*?)</script>', html, re.DOTALL)[1])


def header_of(html):
    """Everything above the first section."""
    return html[html.index("<header>") : html.index("</header>")]


def decoded(values):
    """Numbers of a trace, which Plotly writes as base64."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    return np.array(values)


@contextmanager
def opened(browser, path, width=1200, **options):
    """A page with its figures drawn, which must ask for nothing, say nothing on the console and open no dialog."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    events = []
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (events.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: events.append(f"request: {request.url}"))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-figures]")
    yield page
    allowed = (f"request: {path.as_uri()}", "request: data:", "request: blob:")
    assert [event for event in events if not event.startswith(allowed)] == []
    page.close()
