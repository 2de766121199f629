"""An HTML page, parsed as by a browser."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """The elements and the text of a page; every element must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(text)

    def all(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())
