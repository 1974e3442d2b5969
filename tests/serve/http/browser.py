"""A real browser, headless, that the machine has; driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Browser, sync_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS: Final = (
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
)


def browser_path() -> str | None:
    """The program of a browser; None if the machine has none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """The browser, for the time of the block."""
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield found
        finally:
            found.close()
