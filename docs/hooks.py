"""What the site needs beyond Markdown: equations without a script, and pages for the source files that pages link to.

The pages are read on a repository host, which renders ``math`` fences and follows links such as ``../src/...``, and on
the site, for which these hooks do the same at build time. So the site loads nothing from elsewhere.
"""

from __future__ import annotations

import functools
import html
import re
from pathlib import Path
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath, text_to_path
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.superfences import SuperFencesException  # type: ignore[import-untyped]

SIZE = 10.0
STIX = FontProperties(size=SIZE, math_fontfamily="stix")
CLOSING = 79
"""The code in matplotlib's `Path` that ends an outline; one that is filled need not be closed."""
LETTERS = {1: "M", 2: "L", 3: "Q", 4: "C"}
"""SVG's letters for the other codes; a curve has the code of its kind at each of its points."""
OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)\)")
"""A link from a page in docs/ to a file of the project; from a folder in docs/ the same text leads to another page."""
INDEXED = re.compile(r"(?<![^\W_])((?:prox|deg|[^\W\d_])[\u0300-\u036f²]?)([_^])(\{[^}]*\}|\([^)]*\)|\w+)")
"""A symbol, perhaps with an accent, and its index or power."""
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".cff": "yaml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Render ``math`` fences as equations."""
    fence = {"name": "math", "class": "equations", "format": equations}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every source file that some page links to."""
    root = Path(config.config_file_path).parent
    pages = [file for file in files if file.is_documentation_page() and _at_top(file)]
    for path in sorted({found for page in pages for found in OUTSIDE.findall(page.content_string)}):
        code = (root / path).read_text(encoding="utf-8")
        fence = f"````{LANGUAGES.get(Path(path).suffix, 'text')}\n{code}\n````\n"
        files.append(File.generated(config, f"source/{path}.md", content=f"# `{path}`\n\n{fence}"))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to source files at their pages."""
    return OUTSIDE.sub(r"](source/\1.md)", markdown) if _at_top(page.file) else markdown


def on_page_content(content: str, **_: Any) -> str:
    """Typeset indices and powers of symbols, such as x_i and x^R, outside code."""
    pieces, code = re.split(r"(<[^>]*>)", content), 0
    for place, piece in enumerate(pieces):
        if piece.startswith("<"):
            code += bool(re.match(r"<(pre|code)\b", piece)) - piece.startswith(("</pre", "</code"))
        elif not code:
            pieces[place] = INDEXED.sub(_raise_index, piece)
    return "".join(pieces)


def _at_top(file: File) -> bool:
    return "/" not in file.src_uri


def _raise_index(found: re.Match[str]) -> str:
    letter, sign, index = found.groups()
    tag = "sub" if sign == "_" else "sup"
    return f"{letter}<{tag}>{index.strip('{()}')}</{tag}>"


def equations(source: str, _language: str, name: str, _options: Any, _md: Any, **_: Any) -> str:
    """Render TeX as drawings: a row for each line, a column for each part between ``&``."""
    lines = re.sub(r"\\(begin|end)\{aligned\}", "", source).split(r"\\")
    rows = [[" ".join(part.split()) for part in line.split("&")] for line in lines if line.strip()]
    try:
        cells = (f"<tr>{''.join(f'<td>{drawing(part)}</td>' for part in row)}</tr>" for row in rows)
        return f'<div class="{name}"><table class="{name}" role="presentation">{"".join(cells)}</table></div>'
    except ValueError as error:  # any other error would leave the TeX as it is, silently
        raise SuperFencesException(f"cannot draw {source}: {error}") from error


@functools.cache
def drawing(tex: str) -> str:
    """One formula as SVG, in the colour and size of the surrounding text, with the TeX as its accessible label."""
    math = f"${tex}$"
    if not tex:
        return ""
    width, height, descent = (float(side) for side in text_to_path.get_text_width_height_descent(math, STIX, True))
    path = TextPath((0, 0), math, prop=STIX)
    drawn = path.codes != CLOSING
    letters = "".join(LETTERS[code] for code in path.codes[drawn].tolist())
    pattern = re.sub("M|L|QQ|CCC", lambda part: part[0][0] + " ".join(["%.2f %.2f"] * len(part[0])), letters)
    outline = pattern % tuple((path.vertices[drawn] * (1, -1)).flatten().tolist())
    return (
        f'<svg role="img" aria-label="{html.escape(tex)}" viewBox="0 {descent - height:.2f} {width:.2f} {height:.2f}" '
        f'style="width:{width / SIZE:.3f}em;height:{height / SIZE:.3f}em;vertical-align:{-descent / SIZE:.3f}em">'
        f'<path d="{outline}"/></svg>'
    )
