"""Pictures of a report's page for the documentation, taken by headless chromium (extra `browser`; chromium of the system).

    dptrain report runs --html report.html
    python scripts/report_screenshots.py report.html docs/pictures

Written are report-1280.png, report-1280-dark.png and report-390.png: the page from its top, at the width in the name.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

SHOTS = (("report-1280", 1280, "light"), ("report-1280-dark", 1280, "dark"), ("report-390", 390, "light"))
HEIGHT = 3400
"""Pixels of the page that a picture shows at most."""


def shoot(page: Path, folder: Path, height: int = HEIGHT) -> list[Path]:
    """Write the pictures; their files. Raises SystemExit where there is no chromium."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no chromium on this machine\n    write: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        for name, width, scheme in SHOTS:
            opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            opened.goto(page.absolute().as_uri())
            long = min(height, opened.evaluate("() => document.documentElement.scrollHeight"))
            file = folder / f"{name}.png"
            clip = {"x": 0, "y": 0, "width": width, "height": long}
            opened.screenshot(path=str(file), clip=clip, full_page=True)
            opened.close()
            written.append(file)
        browser.close()
    return written


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="a page that `dptrain report --html` has written")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--height", type=int, default=HEIGHT, help="pixels from the top (default: %(default)s)")
    arguments = parser.parse_args()
    for file in shoot(arguments.page, arguments.folder, arguments.height):
        print(f"{file} ({file.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
