"""Main text by trafilatura: slower and more selective than ours; needs the extra `corpus-trafilatura`."""

from maxtrain.core.errors import UserError
from maxtrain.corpus.html.pages import Page, language_of, parse_page, title_of


def quality_text(html: str) -> Page:
    """The main text of a page as trafilatura sees it, without comments.

    Raises:
        UserError: trafilatura is not installed.
    """
    try:
        import trafilatura  # an extra of its own
    except ImportError:
        raise UserError(
            "trafilatura is not installed; pip install 'maxtrain[corpus-trafilatura]', or read HTML without `quality`"
        ) from None
    tree = parse_page(html)
    text = trafilatura.extract(html, include_comments=False, include_tables=True, deduplicate=False) or ""
    return Page(text.strip(), title_of(tree), language_of(tree))
