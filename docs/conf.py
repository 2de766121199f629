"""The settings of the site, which `python -m sphinx -W --keep-going docs site` builds, from the repository's root."""

import time
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

from attacks import __version__
from scripts.api_reference import pages
from scripts.parts import cards, pictures

project, author, release = "Viewproof", "the Viewproof authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["sphinx_gallery.gen_gallery"]  # runs docs/examples; not with -D plot_gallery=0
exclude_patterns = ["physical", "downscale"]  # folders of pictures
exclude_patterns += ["examples"]  # the site has what sphinx-gallery makes of them
html_theme = "furo"
html_title = "Viewproof"
html_static_path, html_css_files = ["static"], ["site.css"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")  # the order of what a search finds
html_show_copyright = False
html_math_renderer = "mathml"  # browsers show it without a script
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": (),
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
}
lexers["mermaid"] = TextLexer()  # a page fetches no script that would draw it

_docs, _start = Path(__file__).parent, time.process_time()
_written = {f"api/{_name}.md": _text.encode() for _name, _text in pages().items()}
_written |= {f"parts/{_name}.md": _text.encode() for _name, _text in cards.card_pages().items()}
_written |= {f"parts/pictures/{_name}": _picture for _name, _picture in pictures.part_pictures()}
for _name, _content in _written.items():
    _path = _docs / _name
    _path.parent.mkdir(parents=True, exist_ok=True)
    if not _path.is_file() or _path.read_bytes() != _content:  # an unchanged page is not built again
        _path.write_bytes(_content)
print(f"{len(_written)} generated pages and pictures in {time.process_time() - _start:.0f} s of CPU")


def _facts_as_fields(app, what, name, obj, options, lines):  # noqa: ANN001, ANN202, ARG001
    """The lines of a docstring that the cards show, a field each instead of one paragraph."""
    cards.as_fields(lines)


def _mathml(translator, node):  # noqa: ANN001, ANN202
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):  # noqa: ANN001, ANN201
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    app.connect("autodoc-process-docstring", _facts_as_fields)
