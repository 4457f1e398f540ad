"""Rules that clean texts: each changes one thing, by name, and can be switched off.

They run in this order, for these reasons:

1. `raw_html`: tags and entities mean something only together; a page's markup must be read before its `&lt;` turns into
   `<`.
2. `html_entities`: what is left of HTML in text. Wrong decodings hide behind entities (`&Atilde;&copy;`), so before 3.
3. `mojibake`: wrong decodings are told from bytes, of which controls, soft hyphens and odd spaces are some, so before
   all that tidies characters.
4. `unicode`: NFC, line ends, full-width letters, ligatures, soft hyphens. Needs the right characters.
5. `control_characters`: what nobody sees. After line ends have become line feeds.
6. `whitespace`: runs of spaces, blank lines, spaced-out Chinese. After odd and invisible characters are gone.
7. `hyphenation`: words broken at line ends. Needs tidy line ends.
8. `links`: targets shortened; before lines are judged by their length.
9. `ellipsis_lines`: teasers; a text of nothing else is left out.
10. `boilerplate`: menus, notices, advertisements, comments. Last, for it reads whole, tidy lines.

Each rule is a pure function of the text and leaves its own output alone. `features.features` looks at a text once and
tells which rules have anything to do; `phrases.may_hold` does so for boilerplate. Rules about prose leave source code
and mathematics alone, where only controls and line ends are tidied.

Across documents, `host_lines` counts the lines that a host's pages share (`count_lines` by shard, `merge_counts`,
`repeated_lines`), and `remove_lines` takes them out: what phrase lists do not know, repetition tells. It belongs before
`boilerplate`, on texts that the rules up to `links` have tidied.
"""

from maxtrain.corpus.clean.boilerplate import Boilerplate, EllipsisLines
from maxtrain.corpus.clean.characters import ControlCharacters, Unicode
from maxtrain.corpus.clean.layout import Hyphenation, Whitespace
from maxtrain.corpus.clean.links import Links
from maxtrain.corpus.clean.markup import HtmlEntities, RawHtml
from maxtrain.corpus.clean.mojibake import Mojibake
from maxtrain.corpus.rules import Rule

CLEAN_RULES: tuple[type[Rule], ...] = (
    RawHtml,
    HtmlEntities,
    Mojibake,
    Unicode,
    ControlCharacters,
    Whitespace,
    Hyphenation,
    Links,
    EllipsisLines,
    Boilerplate,
)
"""In running order."""
