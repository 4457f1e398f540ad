r"""LaTeX to text: comments and preamble go, `\newcommand` macros are expanded, mathematics stays as it is written.

One pass over the source with a stack of sources to read from, as TeX does it, but of TeX only what articles use. All
work is bounded: macros may nest and expand so far, the output may be so long.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

_MOST_DEPTH = 32
"""Macros within macros within arguments."""
_MOST_EXPANSIONS = 100_000

_MATH_ENVIRONMENTS = frozenset(
    name + star
    for name in ("math", "displaymath", "equation", "align", "alignat", "gather", "multline", "eqnarray", "flalign",
                 "dmath", "subequations")
    for star in ("", "*")
)  # fmt: skip
_VERBATIM = frozenset(("verbatim", "verbatim*", "lstlisting", "minted", "Verbatim", "alltt", "comment"))
_BEGIN_VERBATIM = re.compile(
    r"\\begin\{(" + "|".join(re.escape(name) for name in sorted(_VERBATIM)) + r")\}(?:\[[^\]\n]*\])?(?:\{[^}\n]*\})?"
)
_DROPPED = frozenset(
    ("tikzpicture", "pgfpicture", "picture", "thebibliography", "filecontents", "filecontents*", "comment", "CCSXML",
     "pspicture", "axis", "pycode", "sagesilent")
)  # fmt: skip
_NO_TEXT = {
    # command: its arguments, which are not text
    "cite": 1, "citep": 1, "citet": 1, "citealp": 1, "citealt": 1, "citeauthor": 1, "citeyear": 1, "parencite": 1,
    "textcite": 1, "autocite": 1, "footcite": 1, "nocite": 1, "ref": 1, "eqref": 1, "cref": 1, "Cref": 1, "autoref": 1,
    "pageref": 1, "nameref": 1, "label": 1, "vspace": 1, "hspace": 1, "vskip": 0, "bibliographystyle": 1,
    "bibliography": 1, "printbibliography": 0, "includegraphics": 1, "input": 1, "include": 1, "usepackage": 1,
    "documentclass": 1, "pagestyle": 1, "thispagestyle": 1, "setcounter": 2, "addtocounter": 2, "setlength": 2,
    "addtolength": 2, "color": 1, "hypersetup": 1, "graphicspath": 1, "index": 1, "glossary": 1, "markboth": 2,
    "markright": 1, "addcontentsline": 3, "numberwithin": 2, "theoremstyle": 1, "newtheorem": 2, "hypertarget": 1,
    "fontsize": 2, "rule": 2, "phantom": 1, "hphantom": 1, "vphantom": 1, "definecolor": 3, "newcounter": 1,
    "stepcounter": 1, "refstepcounter": 1, "usetikzlibrary": 1, "captionsetup": 1, "acmDOI": 1, "orcid": 1, "thanks": 1,
    "affiliation": 1, "email": 1, "address": 1, "pdfinfo": 1, "bibitem": 1, "cline": 1, "cmidrule": 1,
    "PassOptionsToPackage": 2, "RequirePackage": 1, "tableofcontents": 0, "maketitle": 0, "title": 1, "author": 1,
    "date": 1, "keywords": 1, "subjclass": 1, "institute": 1, "titlerunning": 1, "authorrunning": 1, "newlength": 1,
    "specialcomment": 3, "DeclareMathOperator": 2, "columnwidth": 0, "textwidth": 0, "linewidth": 0, "raisebox": 1,
    "resizebox": 2, "scalebox": 1, "multirow": 2, "multicolumn": 2, "textcolor": 1, "colorbox": 1, "href": 1,
    "hyperref": 0, "parbox": 1, "makebox": 0, "fbox": 0, "rotatebox": 1, "hyperlink": 1, "foreignlanguage": 1,
}  # fmt: skip
_REFERENCES = frozenset(name for name in _NO_TEXT if "cite" in name or "ref" in name.lower()) - {"href", "hyperref"}
_HEADINGS = frozenset(("part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph"))
_DEFINITIONS = frozenset(("newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"))
_SYMBOLS = {
    "%": "%", "&": "&", "$": "$", "#": "#", "_": "_", "{": "{", "}": "}", " ": " ", "\n": " ", ",": " ", ";": " ",
    ":": " ", "!": "", "/": "", "-": "", "@": "", "ldots": "…", "dots": "…", "textellipsis": "…", "LaTeX": "LaTeX",
    "TeX": "TeX", "BibTeX": "BibTeX", "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^",
    "textbar": "|", "textless": "<", "textgreater": ">", "textunderscore": "_", "textquotesingle": "'", "ss": "ß",
    "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "o": "ø", "O": "Ø", "aa": "å", "AA": "Å", "l": "ł", "L": "Ł", "i": "ı",
    "j": "ȷ", "S": "§", "P": "¶", "dag": "†", "ddag": "‡", "copyright": "©", "pounds": "£", "euro": "€",
    "textregistered": "®", "texttrademark": "™", "textdegree": "°", "quad": " ", "qquad": " ", "enspace": " ",
    "thinspace": " ", "space": " ", "newline": "\n", "linebreak": "\n", "par": "\n\n", "textendash": "–",
    "textemdash": "—", "guillemotleft": "«", "guillemotright": "»", "textquoteleft": "‘", "textquoteright": "’",
    "textquotedblleft": "“", "textquotedblright": "”", "bigskip": "\n\n", "medskip": "\n\n", "smallskip": "\n\n",
    "hline": "", "toprule": "", "midrule": "", "bottomrule": "", "newpage": "\n\n", "clearpage": "\n\n",
}  # fmt: skip
_ACCENTS = {
    "'": "\u0301", "`": "\u0300", "^": "\u0302", '"': "\u0308", "~": "\u0303", "=": "\u0304", ".": "\u0307",
    "c": "\u0327", "v": "\u030c", "u": "\u0306", "H": "\u030b", "k": "\u0328", "r": "\u030a", "d": "\u0323",
    "b": "\u0331",
}  # fmt: skip
_COMMAND = re.compile(r"\\(?:([A-Za-z@]+)\*?|(.|\n))", re.DOTALL)
_PLAIN = re.compile(r"[^\\{}$%~&\-`'\"]+")
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%[^\n]*(?:\n[ \t]*)?")
_BLANK_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r" {2,}")
_BEFORE_MARK = re.compile(r" (?=[.,;:!?)])")
_EMPTY_BRACKETS = re.compile(r" ?[(\[](?:[ \n,;]*\ue002)+[ \n,;]*[)\]]")
"""Brackets that held nothing but what was dropped."""
_DROPPED_MARK = re.compile(r" ?\ue002")
_CELLS = re.compile(r" *\t[ \t]*")
_LINE_ENDS = re.compile(r" ?\n ?")
_NAME = re.compile(r"\\([A-Za-z@]+)")
_MARKS = {0xE000: None, 0xE001: None, 0xE002: None}
_PROTECTED = re.compile("\ue000([0-9]+)\ue001")


@dataclass(frozen=True, slots=True)
class LatexText:
    """Text of a LaTeX file."""

    text: str
    title: str | None


class _OverrunError(Exception):
    """More work or output than is allowed."""


@dataclass
class _Macro:
    arguments: int
    default: str | None
    body: str


def latex_text(source: str, limit: int = 2**24) -> LatexText:
    """Take the text out of LaTeX; where macros run away, the rest is written without expanding any.

    Args:
        source: the file.
        limit: most characters of the result.
    """
    source = source.replace("\r\n", "\n").translate(_MARKS)
    writer = _Writer(limit)
    source = writer.protect_verbatim(source)
    source = _COMMENT.sub(r"\1", source)
    begin = re.search(r"\\begin\s*\{document\}", source)
    if begin is not None:
        writer.read_preamble(source[: begin.start()])
        source = source[begin.end() :]
    end = source.find("\\end{document}")
    body = source if end < 0 else source[:end]
    try:
        writer.write(body, 0)
    except _OverrunError:
        writer = writer.without_macros()
        writer.write(body, 0)
    return LatexText(writer.finish(), writer.title)


class _Writer:
    def __init__(self, limit: int) -> None:
        self.title: str | None = None
        self._limit = limit
        self._macros: dict[str, _Macro] = {}
        self._kept: list[str] = []
        self._out: list[str] = []
        self._size = 0
        self._expansions = 0
        self._expand = True
        self._absent: set[tuple[int, str]] = set()

    def without_macros(self) -> "_Writer":
        """A writer for the same source that expands no macro."""
        other = _Writer(self._limit)
        other._kept = self._kept
        other._expand = False
        other.title = self.title
        return other

    def protect_verbatim(self, source: str) -> str:
        """Put code aside, so that nothing in it is taken for LaTeX."""
        parts: list[str] = []
        place = 0
        for match in _BEGIN_VERBATIM.finditer(source):
            end = f"\\end{{{match[1]}}}"
            if match.start() < place or (close := self._find(source, end, match.end())) < 0:
                continue
            parts.append(source[place : match.start()])
            place = close + len(end)
            if match[1] != "comment":
                self._kept.append(source[match.end() : close].strip("\n"))
                parts.append(f"\n\n\ue000{len(self._kept) - 1}\ue001\n\n")
        source = "".join([*parts, source[place:]])

        def keep_inline(match: re.Match[str]) -> str:
            self._kept.append(match[2])
            return f"\ue000{len(self._kept) - 1}\ue001"

        return re.sub(r"\\(?:verb|lstinline)\*?([^A-Za-z\s*{\[])(.*?)\1", keep_inline, source)

    def read_preamble(self, preamble: str) -> None:
        """Take macros and the title from the preamble; nothing of it is text."""
        place = 0
        while (place := preamble.find("\\", place)) >= 0:
            match = _COMMAND.match(preamble, place)
            if match is None:
                return
            place = match.end()
            if match[1] in _DEFINITIONS or match[1] == "def":
                place = self._define(match[1], preamble, place)
            elif match[1] == "title" and self.title is None:
                place = self._take_title(preamble, place)

    def finish(self) -> str:
        """The text, its white space in order, code put back."""
        text = "".join(self._out)
        text = _SPACES.sub(" ", _CELLS.sub("\t", text))
        text = _DROPPED_MARK.sub("", _EMPTY_BRACKETS.sub("", text))
        text = _LINE_ENDS.sub("\n", _BEFORE_MARK.sub("", text))
        text = _BLANK_LINES.sub("\n\n", text).strip()
        return _PROTECTED.sub(lambda match: self._kept[int(match[1])] if int(match[1]) < len(self._kept) else "", text)

    def _find(self, source: str, word: str, place: int) -> int:
        """Where a word comes next, -1 where it does not; a search that fails is not made again."""
        key = (hash(source), word)
        if key in self._absent:
            return -1
        found = source.find(word, place)
        if found < 0:
            self._absent.add(key)
        return found

    def _put(self, text: str) -> None:
        self._size += len(text)
        if self._size > self._limit:
            raise _OverrunError
        self._out.append(text)

    def write(self, source: str, depth: int) -> None:
        """Write a piece of source.

        Raises:
            _OverrunError: there is no end to it.
        """
        place = 0
        while place < len(source):
            match = _PLAIN.match(source, place)
            if match is not None:
                self._put(match[0])
                place = match.end()
                continue
            character = source[place]
            if character == "\\":
                place = self._command(source, place, depth)
            elif character == "$":
                place = self._math(source, place)
            else:
                place = self._mark(source, place)

    def _mark(self, source: str, place: int) -> int:
        """One of the characters that LaTeX reads in its own way."""
        for written, text in (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”")):
            if source.startswith(written, place):
                self._put(text)
                return place + len(written)
        character = source[place]
        self._put({"{": "", "}": "", "~": " ", "&": "\t", "%": "", "`": "‘"}.get(character, character))
        return place + 1

    def _math(self, source: str, place: int) -> int:
        """Mathematics between dollars, as it is."""
        mark = "$$" if source.startswith("$$", place) else "$"
        end = place + len(mark)
        while (end := self._find(source, mark, end)) >= 0 and source[end - 1] == "\\":
            end += 1
        if end < 0 or (mark == "$" and source.find("\n\n", place, end) >= 0):
            self._put(mark)  # one alone; TeX would call it a mistake
            return place + len(mark)
        self._put(self._expanded(source[place : end + len(mark)]))
        return end + len(mark)

    def _command(self, source: str, place: int, depth: int) -> int:
        match = _COMMAND.match(source, place)
        if match is None:
            return place + 1
        name = match[1] or match[2]
        end = match.end()
        if name in ("("):
            return self._delimited(source, place, end, "\\)" if name == "(" else "\\]")
        if match[1] is None and name == "\\":
            self._put("\n")
            return _after_option(source, end)
        if name in _ACCENTS and (match[1] is None or source[end : end + 1] in ("{", " ", "\\")):
            return self._accent(_ACCENTS[name], source, end)
        if name in ("begin", "end"):
            return self._environment(name, source, place, end)
        if name in _DEFINITIONS or name == "def":
            return self._define(name, source, end)
        if name == "title":
            return self._take_title(source, end)
        if self._expand and name in self._macros:
            return self._macro(self._macros[name], source, end, depth)
        if name in _SYMBOLS:
            self._put(_SYMBOLS[name])
            return _after_space(source, end) if match[1] else end
        if name in _HEADINGS:
            self._put("\n\n")
            end = _after_option(source, end)
            text, end = _argument(source, end)
            self._inner(text, depth)
            self._put("\n\n")
            return end
        if name == "item":
            self._put("\n- ")
            return self._label(source, end, depth)
        if name in ("footnote", "footnotetext"):
            text, end = _argument(source, _after_option(source, end))
            self._put(" (")
            self._inner(text.strip(), depth)
            self._put(")")
            return end
        if name in ("caption", "centerline"):
            self._put("\n\n")
            return _after_option(source, end)
        if name in _NO_TEXT:
            end = _after_option(source, _after_option(source, end))
            for _ in range(_NO_TEXT[name]):
                _, end = _argument(source, end)
            if name in _REFERENCES:
                self._put("\ue002")
            return end
        # What is not known is taken for markup of its argument, such as \emph.
        return _after_space(source, end) if match[1] else end

    def _inner(self, text: str, depth: int) -> None:
        if depth >= _MOST_DEPTH:
            raise _OverrunError
        self.write(text, depth + 1)

    def _expanded(self, formula: str) -> str:
        """Mathematics with the file's own macros written out, since their names say nothing outside it."""
        for _ in range(_MOST_DEPTH if self._expand and self._macros else 0):
            parts: list[str] = []
            place = 0
            for match in _NAME.finditer(formula):
                if match.start() >= place and match[1] in self._macros:
                    text, end = self._apply(self._macros[match[1]], formula, match.end())
                    # A letter after a command's name would become a part of another name.
                    gap = " " if text[-1:].isalpha() and formula[end : end + 1].isalpha() else ""
                    parts += (formula[place : match.start()], text, gap)
                    place = end
            if not parts:
                return formula
            formula = "".join([*parts, formula[place:]])
        return formula

    def _delimited(self, source: str, place: int, end: int, close: str) -> int:
        stop = self._find(source, close, end)
        if stop < 0:
            return end
        self._put(self._expanded(source[place : stop + len(close)]))
        return stop + len(close)

    def _accent(self, mark: str, source: str, end: int) -> int:
        text, end = _argument(source, end)
        letter = {"\\i": "i", "\\j": "j", "\\i ": "i"}.get(text, text)
        self._put(unicodedata.normalize("NFC", letter[:1] + mark) + letter[1:] if letter else "")
        return end

    def _label(self, source: str, end: int, depth: int) -> int:
        end = _after_space(source, end)
        if source.startswith("[", end):
            close = _closing(source, end)
            if close >= 0:
                self._inner(source[end + 1 : close], depth)
                self._put(" ")
                return close + 1
        return end

    def _environment(self, command: str, source: str, place: int, end: int) -> int:
        name, end = _argument(source, end)
        if command == "end":
            self._put("\n" if name not in _MATH_ENVIRONMENTS else "")
            return end
        if name in _MATH_ENVIRONMENTS or name in _DROPPED:
            close = self._find(source, f"\\end{{{name}}}", end)
            if close < 0:
                return end
            close += len(f"\\end{{{name}}}")
            if name in _MATH_ENVIRONMENTS:
                self._put(f"\n{self._expanded(source[place:close])}\n")
            return close
        self._put("\n")
        end = _after_option(source, end)
        if name in ("tabular", "tabular*", "tabularx", "array", "longtable", "minipage", "wrapfigure", "multicols"):
            _, end = _argument(source, end)
            if name in ("tabular*", "tabularx", "wrapfigure"):
                _, end = _argument(source, end)
        return end

    def _take_title(self, source: str, end: int) -> int:
        text, end = _argument(source, _after_option(source, end))
        writer = self.without_macros()
        writer._limit = 10_000
        try:
            writer.write(text, _MOST_DEPTH - 2)
        except _OverrunError:
            return end
        self.title = " ".join(writer.finish().split()) or self.title
        return end

    def _define(self, command: str, source: str, end: int) -> int:
        r"""Remember a macro of `\newcommand` or a `\def` with plain parameters."""
        end = _after_space(source, end)
        if command == "def":
            match = re.compile(r"\\([A-Za-z@]+|.)((?:#[1-9])*)\s*(?=\{)").match(source, end)
            if match is None:
                return end
            body, end = _argument(source, match.end())
            self._macros[match[1]] = _Macro(len(match[2]) // 2, None, body)
            return end
        name, end = _argument(source, end)
        arguments, default = 0, None
        for number in range(2):
            start = _after_space(source, end)
            if not source.startswith("[", start) or (close := _closing(source, start)) < 0:
                break
            option, end = source[start + 1 : close], close + 1
            if number == 0:
                arguments = int(option) if re.fullmatch(r"\s*[0-9]\s*", option) else 0
            else:
                default = option
        body, end = _argument(source, end)
        if re.fullmatch(r"\\(?:[A-Za-z@]+|.)", name.strip()):
            self._macros[name.strip()[1:]] = _Macro(arguments, default, body)
        return end

    def _macro(self, macro: _Macro, source: str, end: int, depth: int) -> int:
        text, end = self._apply(macro, source, end)
        self._inner(text, depth)
        return end

    def _apply(self, macro: _Macro, source: str, end: int) -> tuple[str, int]:
        """A macro's text with its arguments, and the place after them.

        Raises:
            _OverrunError: macros have been expanded too often or to too much.
        """
        self._expansions += 1
        if self._expansions > _MOST_EXPANSIONS:
            raise _OverrunError
        values: list[str] = []
        if macro.default is not None:
            start = _after_space(source, end)
            close = _closing(source, start) if source.startswith("[", start) else -1
            values.append(source[start + 1 : close] if close >= 0 else macro.default)
            end = close + 1 if close >= 0 else end
        while len(values) < macro.arguments:
            value, end = _argument(source, end)
            values.append(value)
        if not macro.arguments:
            end = _after_space(source, end)
        values += [""] * 9
        text = _PARAMETER.sub(lambda match: values[int(match[1]) - 1], macro.body)
        self._size += len(text)
        if self._size > self._limit:
            raise _OverrunError
        return text, end


_PARAMETER = re.compile(r"#([1-9])")
_SPACE = re.compile(r"[ \t]*(?:\n[ \t]*(?!\n))?")


def _after_space(source: str, place: int) -> int:
    """Past spaces and at most one line end."""
    match = _SPACE.match(source, place)
    return match.end() if match else place


def _after_option(source: str, place: int) -> int:
    """Past an argument in brackets, where there is one."""
    start = _after_space(source, place)
    if source.startswith("[", start) and (close := _closing(source, start)) >= 0:
        return close + 1
    return place


@lru_cache(maxsize=64)
def _brackets(source: str) -> dict[int, int]:
    """Place of the closing bracket or brace for every opening one; a brace closes the brackets left open within it."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACKET.finditer(source):
        mark = match[0]
        if mark in "{[":
            opened.append(match.start())
        elif mark == "}":
            while opened and source[opened[-1]] == "[":
                opened.pop()
            if opened:
                found[opened.pop()] = match.start()
        elif mark == "]" and opened and source[opened[-1]] == "[":
            found[opened.pop()] = match.start()
    return found


def _closing(source: str, place: int) -> int:
    """Place of the bracket or brace that closes the one at `place`, -1 where there is none."""
    return _brackets(source).get(place, -1)


_BRACKET = re.compile(r"\\.|[\[\]{}]", re.DOTALL)


def _argument(source: str, place: int) -> tuple[str, int]:
    """An argument: what is in braces, a command, or one character."""
    start = _after_space(source, place)
    if start >= len(source):
        return "", start
    if source[start] == "{":
        close = _closing(source, start)
        return (source[start + 1 : close], close + 1) if close >= 0 else ("", start + 1)
    if source[start] == "\\":
        match = _COMMAND.match(source, start)
        return (match[0], match.end()) if match else ("", start + 1)
    if source[start] in "\n}":
        return "", start
    return source[start], start + 1
