"""The settings of the site, which `python -m sphinx -W --keep-going docs site` builds, from the repository's root."""

from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

from attacks import __version__
from attacks.runtime.progress import Progress
from scripts.api_reference import pages

project, author, release = "Viewproof", "the Viewproof authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
extensions += ["sphinx_gallery.gen_gallery"]  # runs docs/examples; not with -D plot_gallery=0
exclude_patterns = ["physical", "downscale", "transforms"]  # folders of pictures
exclude_patterns += ["examples"]  # the site has what sphinx-gallery makes of them
html_theme = "furo"
html_title = "Viewproof"
html_show_copyright = False
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
Progress.everywhere = False  # an example's page shows its results
lexers["mermaid"] = TextLexer()  # a page fetches no script that would draw it

_api = Path(__file__).parent / "api"
_api.mkdir(exist_ok=True)
for _name, _text in pages().items():
    _path = _api / f"{_name}.md"
    if not _path.is_file() or _path.read_text(encoding="utf-8") != _text:  # an unchanged page is not built again
        _path.write_text(_text, encoding="utf-8")
