"""Open pages in a real browser and record their errors and network requests."""

import pytest

TIMEOUT_MS = 30_000


@pytest.fixture
def open_file(browser):
    """Open a file; afterwards, assert that it logged no error and made no network request."""
    complaints, contexts = [], []

    def open_file(path, **options):
        options = {"viewport": {"width": 1300, "height": 900}} | options
        contexts.append(context := browser.new_context(**options))
        context.set_default_timeout(TIMEOUT_MS)
        page, file = context.new_page(), path.as_uri()
        page.on(
            "console", lambda message: complaints.append(f"console {message.type}: {message.text}")
        )
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "dialog",
            lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        page.on(
            "request",
            lambda request: request.url == file or complaints.append(f"request: {request.url}"),
        )
        page.route(
            "**/*", lambda route: route.continue_() if route.request.url == file else route.abort()
        )
        page.goto(file)
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not complaints
