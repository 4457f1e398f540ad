"""Links: what they say stays, where they lead is cut to what a reader would need."""

import re
from typing import ClassVar, Literal

from maxtrain.config.schema.types import PositiveInt
from maxtrain.corpus.clean.features import LINK, features, is_verbatim
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Rule

Target = Literal["keep", "shorten", "drop"]

_URL = r"(?:https?|ftp)://[^\s<>\"'`|\\^{}\[\]()\u3000-\u303f\uff00-\uffef\u4e00-\u9fff\u3040-\u30ff]+(?:\([^\s()<>]*\)[^\s<>\"'`|\\^{}\[\]()\u3000-\u303f\uff00-\uffef\u4e00-\u9fff\u3040-\u30ff]*)*"
_BARE = re.compile(_URL)
_DATA = re.compile(r"data:[a-z]+/[-+.a-z0-9]+(?:;[-a-z0-9=]+)*;base64,[A-Za-z0-9+/=]+", re.IGNORECASE)
_MARKDOWN = re.compile(r"(!?)\[((?:[^\[\]\n\\]|\\.|\[[^\[\]\n]*\]){0,400})\]"
                       r"\(\s*(<[^<>\n]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)"
                       r"(\s+(?:\"[^\"\n]*\"|'[^'\n]*'))?\s*\)")  # fmt: skip
_CODE = re.compile(r"(```+|~~~+)[^\n]*\n.*?(?:\n[ \t]*\1|\Z)|`[^`\n]+`", re.DOTALL)
_TRACKING = re.compile(
    r"(?:utm_\w+|fbclid|gclid|gclsrc|dclid|msclkid|yclid|twclid|ttclid|igshid|igsh|mc_[ce]id|_ga|_gl|_hs(?:enc|mi)|mkt_tok|"
    r"spm|scm|share_(?:token|from|medium|source|plat|session_id|tag)|vd_source|spm_id_from|ref_src|ref_url|oly_\w+_id|"
    r"wt[._]mc\w*|cmpid|s_cid|trk(?:Campaign)?|bd_vid|from_source|pk_\w+|piwik_\w+|mtm_\w+|wickedid|vero_(?:conv|id)|"
    r"rb_clickid|srsltid|gbraid|wbraid)",
    re.IGNORECASE,
)


def clean_url(url: str, target: Target, *, tracking: bool, longest: int) -> str:
    """An address without tracking parameters, or without query and fragment, or nothing.

    Args:
        url: the address.
        target: `shorten` drops query and fragment of an address longer than `longest`.
        tracking: whether parameters that only track are removed.
        longest: characters.
    """
    if target == "drop":
        return ""
    head, mark, fragment = url.partition("#")
    head, question, query = head.partition("?")
    if question and tracking:
        separator = ";" if ";" in query and "&" not in query else "&"
        kept = [part for part in query.split(separator) if not _TRACKING.fullmatch(part.partition("=")[0])]
        if kept != query.split(separator):
            query = separator.join(kept)
            question = "?" if query else ""
    if tracking and mark and _TRACKING.fullmatch(fragment.partition("=")[0]):
        mark = fragment = ""
    told = head + question + query + mark + fragment
    if target == "shorten" and len(told) > longest:
        told = head
    return told


class Links(Rule):
    """Links keep their text; targets are kept, shortened or dropped, and rid of what tracks readers."""

    name: ClassVar[str] = "links"

    markdown: Target = "shorten"
    """What becomes of the target in [text](target); a dropped one leaves the text, or nothing of an image."""
    bare: Target = "shorten"
    """What becomes of an address in running text."""
    tracking: bool = True
    """Remove parameters such as utm_source."""
    max_length: PositiveInt = 120
    """Characters over which `shorten` cuts query and fragment off."""

    def apply(self, document: Document) -> Change | None:
        """Tidy the links of prose, not those inside code."""
        text = document.text
        if is_verbatim(document) or not features(text).has(LINK):
            return None
        parts = []
        done = 0
        if "`" in text or "~~~" in text:
            for match in _CODE.finditer(text):
                parts += [self._tidy(text[done : match.start()]), match[0]]
                done = match.end()
        told = "".join([*parts, self._tidy(text[done:])])
        return None if told == text else Change(told)

    def _tidy(self, text: str) -> str:
        if "](" in text:
            text = _MARKDOWN.sub(self._markdown, text)
        if "://" in text:
            text = _BARE.sub(self._bare, text)
        if "base64," in text:
            text = _DATA.sub("", text)
        return text

    def _markdown(self, match: re.Match[str]) -> str:
        image, words, target, title = match[1], match[2], match[3], match[4] or ""
        if self.markdown == "drop" or target.startswith("data:"):
            return "" if image else words
        bare = target[1:-1] if target.startswith("<") else target
        if "://" not in bare and not bare.startswith(("/", "?")):
            return match[0]
        told = clean_url(bare, self.markdown, tracking=self.tracking, longest=self.max_length)
        return match[0] if told == bare else f"{image}[{words}]({told}{title})"

    def _bare(self, match: re.Match[str]) -> str:
        url = match[0]
        end = len(url.rstrip(".,;:!?*_~"))
        told = clean_url(url[:end], self.bare, tracking=self.tracking, longest=self.max_length)
        return told + url[end:]
