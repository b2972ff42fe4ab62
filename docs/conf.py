"""The documentation site: ``sphinx-build -W docs build/site``. It loads nothing from elsewhere."""

from importlib import metadata

from sphinx.application import Sphinx

project = "Lethe"
release = metadata.version("lethe")
html_title = "Lethe"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["results"]

# Headings are linked as on GitHub, where the same pages are read; a page or heading that is not there ends the build.
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["lethe.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7db8e0", "color-brand-content": "#7db8e0"},
}
html_copy_source = False
html_show_sphinx = html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
python_use_unqualified_type_names = True


def keep_colons(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from taking what comes before a colon for the type of a property."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(": ", " \N{EN DASH} ", 1)


def setup(app: Sphinx) -> None:
    """Register the hook, before napoleon's."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
