"""How the site is built: `make docs`. Nothing is fetched."""

import re
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from tomllib import loads

from jinja2 import FileSystemLoader
from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx
from numpydoc.docscrape import NumpyDocString
from numpydoc.xref import DEFAULT_LINKS

from flwr_fco import strategies, tables
from flwr_fco.strategies import Options

DOCS = Path(__file__).parent
PROJECT = loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = f"{PROJECT['urls']['Source']}/blob/main"
#: Until there is an address of the repository, no page links it.
PUBLISHED = "example.org" not in SOURCE

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
release = PROJECT["version"]
version = release
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.rst", "gallery/*.py", "sg_execution_times.rst"]
templates_path = ["_templates"]
# What is quoted can be sought in a log.
smartquotes = False

html_theme = "pydata_sphinx_theme"
html_title = "flwr-fco"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "flwr-fco"},
    "icon_links": [{"name": "Source", "url": PROJECT["urls"]["Source"], "icon": "fa-solid fa-code"}] * PUBLISHED,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 9,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
}
html_sidebars = {"index": []}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# A strategy and an estimator have a page each. All else stands on the page of its module: a page for each of three
# hundred names costs most of the time in which the site builds.
autosummary_context = {
    "with_a_page": [
        *(name for name, kind in vars(strategies).items() if isinstance(kind, type) and issubclass(kind, Options)),
        *tables.__all__,
    ]
}
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # scikit-learn writes these, and their docstrings link its own pages.
    "exclude-members": "set_fit_request, set_predict_request, set_score_request",
}
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
# Ray's classes are nobody's base, and PyTorch's are shown if it is there: `make docs` has it.
autodoc_mock_imports = ["ray"] if find_spec("torch") else ["ray", "torch"]
numpydoc_show_class_members = False
# A name in single backquotes is a link where it is one of ours or in an inventory, and code elsewhere.
default_role = "py:obj"
# tools/inventories/write.py says where they come from.
intersphinx_mapping = {
    name: (address, f"../tools/inventories/{name}.inv")
    for name, address in {
        "flwr": "https://flower.ai/docs/framework/",
        "numpy": "https://numpy.org/doc/stable/",
        "scikit-learn": "https://scikit-learn.org/stable/",
        "torch": "https://docs.pytorch.org/docs/stable/",
    }.items()
}
# The same among the types of parameters, where names have no backquotes. Python's own, which numpydoc knows, stay text.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    **{name: name for name in DEFAULT_LINKS},
    "ndarray": "numpy.ndarray",
    **{
        name: f"flwr.app.{name}"
        for name in ("Array", "ArrayRecord", "ConfigRecord", "Context", "Message", "MetricRecord", "RecordDict")
    },
    **{
        name: f":class:`{name}`"
        for name in (
            "flwr.clientapp.ClientApp",
            "flwr.serverapp.Grid",
            "flwr.serverapp.strategy.Result",
            "flwr.serverapp.strategy.Strategy",
            "numpy.random.Generator",
            "torch.dtype",
            "torch.nn.Module",
            "torch.utils.data.Dataset",
        )
    },
}
# numpydoc compiles its one template anew for every docstring, a tenth of the time of the build.
TEMPLATES = SandboxedEnvironment(loader=FileSystemLoader(Path(docscrape_sphinx.__file__).parent / "templates"))
docscrape_sphinx.SandboxedEnvironment = lambda loader: TEMPLATES

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
}


def link_the_repository(app, docname, source):
    """Turn a link to a file outside docs/ into its address, or into text: the site has no such file."""
    folder = Path(app.env.doc2path(docname)).parent

    def outside(match):
        path = (folder / match[2]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return match[0]
        return f"[{match[1]}]({SOURCE}/{path.relative_to(DOCS.parent)}{match[3] or ''})" if PUBLISHED else match[1]

    source[0] = re.sub(r"\[([^][]*)\]\(((?!https?:)[^)#\s]+)(#[^)\s]*)?\)", outside, source[0])


def add_inherited(app, prefix, name, obj, options, lines):
    """Give the options that a strategy inherits a section of their own, before numpydoc reads the docstring."""
    if prefix != "class" or not issubclass(obj, Options):
        return
    known = set()
    block = ["Other Parameters", "----------------"]
    for kind in (kind for kind in obj.__mro__ if issubclass(kind, Options)):
        for entry in NumpyDocString(cleandoc(kind.__doc__))["Parameters"]:
            names = set(entry.name.split(", "))
            if kind is not obj and not names & known:
                block += [f"{entry.name} : {entry.type}", *(f"    {line}" for line in entry.desc)]
            known |= names
    if len(block) > 2:
        sections = [i for i, line in enumerate(lines[1:]) if re.match("-{3,}$", line) and lines[i] != "Parameters"]
        start = min(sections, default=len(lines))
        lines[start:start] = [*[""] * (start == len(lines)), *block, ""]


LOOKED_FOR = ("regularizer", "client_lr", "server_lr", "work", "client", "density", "fraction_train")


def fold_inherited(app, prefix, name, obj, options, lines):
    """Put that section, as numpydoc has written it, into a box that opens: fifty options do not hide the first five.

    The box names those that people look for first.
    """
    if ":Other Parameters:" not in lines:
        return
    start = lines.index(":Other Parameters:")
    end = next((i for i in range(start + 1, len(lines)) if lines[i].strip() and lines[i][0] != " "), len(lines))
    folded = [f"   {line.strip() and line[4:]}".rstrip() for line in lines[start + 1 : end]]
    names = {name for line in folded for name in re.findall(r"^ {3}\*\*(.+?)\*\*", line) for name in name.split(", ")}
    first = [name for name in LOOKED_FOR if name in names]
    title = f"Inherited options: {', '.join(first)} and {len(names) - len(first)} more"
    lines[start:end] = [f".. dropdown:: {title}", "", *folded, ""]


def escape_bars(app, prefix, name, obj, options, lines):
    """Keep |w| an absolute value: reStructuredText would look for something to put in its place."""
    doctest = False
    for i, line in enumerate(lines):
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line.strip()))
        if not doctest:
            lines[i] = re.sub(r"(``.*?``)|\|", lambda match: match[1] or r"\|", line)


def setup(app):
    """Connect what is above."""
    app.connect("source-read", link_the_repository)
    app.connect("autodoc-process-docstring", add_inherited, priority=400)
    app.connect("autodoc-process-docstring", fold_inherited, priority=600)
    app.connect("autodoc-process-docstring", escape_bars, priority=700)
