"""A headless browser, and what it reports about a page."""

import shutil
from contextlib import contextmanager

#: The installed browser, which needs no download; Playwright's if there is none.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
#: The text of a page whose contrast with its background is below 4.5; text in drawings and pictures is excluded.
PALE = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const fill = parts(getComputedStyle(node).backgroundColor);
      if (fill.length === 3 || fill[3] === 1) return fill.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const pale = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || node.closest("svg, script, style")) continue;
    const both = [light(parts(getComputedStyle(node).color).slice(0, 3)), light(behind(node))];
    const [dark, bright] = both.sort((a, b) => a - b);
    if ((bright + 0.05) / (dark + 0.05) < 4.5) pale.push(walk.currentNode.data.trim());
  }
  return pale;
}"""
#: The font sizes, in pixels, in the drawings of a page.
LETTERS = """() => [...document.querySelectorAll("svg text")].filter((each) => each.checkVisibility()).map((each) => {
  const svg = each.ownerSVGElement;
  return parseFloat(getComputedStyle(each).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
})"""


@contextmanager
def chromium():
    """The browser, shared by many pages: it takes a second to start."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        result = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield result
        result.close()


class Visit:
    """A page opened from disk: `page`, its console `messages`, and the URLs that it loaded, `urls`."""

    def __init__(self, browser, path, width=1280, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page, self.messages, self.urls = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.urls.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()
