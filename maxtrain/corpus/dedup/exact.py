"""Exact duplicates: keys of texts and addresses that are equal once what does not matter is normalised."""

import hashlib
import unicodedata
from collections.abc import Sequence
from functools import cache
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import numpy as np

from maxtrain.config.schema.types import Section
from maxtrain.corpus.dedup.near import choose
from maxtrain.corpus.text.classes import PUNCTUATION, SYMBOL, class_table
from maxtrain.corpus.text.folded import codes_of

# fmt: off
_TRACKING = frozenset([
    "_ga", "_gl", "_hsenc", "_hsmi", "dclid", "epik", "fbclid", "gbraid", "gclid", "gclsrc", "igshid",
    "li_fat_id", "mc_cid", "mc_eid", "mkt_tok", "msclkid", "oly_anon_id", "oly_enc_id", "s_cid", "spm", "srsltid",
    "ttclid", "twclid", "vero_id", "wbraid", "wickedid", "yclid", "ysclid",
])
# fmt: on
"""Parameters that advertisers and mailers add; none of them selects content."""
_PORTS = {"http": "80", "https": "443", "ftp": "21"}


class ExactConfig(Section):
    """What does not tell two texts apart."""

    ignore_punctuation: bool = False
    """Whether punctuation and symbols are passed over too."""


@cache
def _ignored_characters() -> np.ndarray:
    return (class_table() & (PUNCTUATION | SYMBOL)) != 0


def normalise_text(text: str, config: ExactConfig) -> str:
    """A text as it is compared: NFKC, case folded, without white space.

    Scripts without spaces break lines anywhere, so a line end there is as good as none.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = "".join(text.casefold().split())
    if config.ignore_punctuation:
        codes = codes_of(text)
        text = codes[~_ignored_characters()[codes]].tobytes().decode("utf-32-le", "surrogatepass")
    return text


def text_keys(texts: Sequence[str], config: ExactConfig) -> np.ndarray:
    """Keys of texts, the first 128 bits of SHA-256 of each normalised, [documents, 2] uint64."""
    digests = [
        hashlib.sha256(normalise_text(text, config).encode("utf-8", "surrogatepass")).digest()[:16] for text in texts
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2)


def normalise_url(url: str) -> str:
    """An address without what seldom changes the page: scheme, `www.`, default port, fragment, tracking parameters.

    Parameters are sorted, percent-encoding is made uniform, and a slash at the end of the path is dropped. A fragment
    that begins with `!` or `/` names a page of a one-page site, and stays. What is no address comes back stripped.
    """
    url = "".join(url.split())
    try:
        parts = urlsplit(url if "//" in url[:16] else "//" + url)
        host = (parts.hostname or "").rstrip(".")
        port = parts.port
    except ValueError:
        return url
    host = host.removeprefix("www.")
    if port is not None and str(port) != _PORTS.get(parts.scheme or "http"):
        host += f":{port}"
    path = quote(unquote(parts.path, errors="surrogateescape"), safe="/:@!$&'()*+,;=~", errors="surrogateescape")
    pairs = parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape")
    kept = sorted((key, value) for key, value in pairs if not _is_tracking(key))
    query = "?" + urlencode(kept, errors="surrogateescape") if kept else ""
    fragment = "#" + parts.fragment if parts.fragment[:1] in ("!", "/") else ""
    return host + path.rstrip("/") + query + fragment


def _is_tracking(key: str) -> bool:
    key = key.lower()
    return key in _TRACKING or key.startswith(("utm_", "pk_", "mtm_", "hsa_"))


def url_keys(urls: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Keys of addresses, [documents, 2] uint64, and which documents have one, [documents] bool."""
    given = np.array([bool(url and url.strip()) for url in urls], np.bool_)
    digests = [hashlib.sha256(normalise_url(url or "").encode("utf-8", "surrogatepass")).digest()[:16] for url in urls]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2), given


def choose_by_key(keys: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Place of the document that is kept of those with the same key, [documents] int64.

    Args:
        keys: [documents, 2] uint64.
        ranks: of `near.precedence`, [documents] int64.
    """
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    return choose(groups.reshape(-1), ranks)
