"""Licences, hosts and opt-outs."""

import hashlib

import pytest
from pydantic import ValidationError

from maxtrain.core.errors import UserError
from maxtrain.corpus.safety import Domains, Licence, OptOut
from tests.unit.corpus.safety.conftest import document, reason


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", None),
        ("mit", None),
        ("CC-BY-4.0", None),
        ("CC-BY-NC-4.0", "licence_denied"),
        ("GPL-3.0-only", "licence_not_allowed"),
        ("MIT or GPL-3.0-only", None),
        ("GPL-2.0 OR CC-BY-NC-4.0", "licence_not_allowed"),
        ("MIT and GPL-3.0-only", "licence_not_allowed"),
        ("MIT AND CC-BY-NC-4.0", "licence_denied"),
        ("(MIT OR Apache-2.0)", None),
        ("public domain (Ambrose Bierce)", None),
        ("", "licence_unknown"),
        ("NOASSERTION", "licence_unknown"),
    ],
)
def test_licences_follow_patterns(licence, expected):
    rule = Licence(allow=("MIT", "Apache-*", "CC-BY-*", "public domain*"), deny=("*-NC-*",), unknown="drop")
    assert reason(rule, licence=licence) == expected


def test_without_patterns_every_licence_stays():
    assert reason(Licence(), licence="anything at all") is None
    assert reason(Licence(), licence="") is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://bad.example/", "host_blocked"),
        ("http://www.BAD.example:8080/x?y#z", "host_blocked"),
        ("https://a.b.bad.example./x", "host_blocked"),
        ("https://notbad.example/", None),
        ("https://bad.example.org/", None),
        ("https://good.bad.example/x", None),
        ("https://www.site.example/ads/1", "url_blocked"),
        ("https://site.example/adsense", None),
        ("https://any.example/wp-login.php", "url_blocked"),
        ("https://xn--mnchen-3ya.example/", "host_blocked"),
        ("https://münchen.example/", "host_blocked"),
        ("https://[broken", None),
        (None, None),
    ],
)
def test_a_blocked_domain_blocks_all_below(url, expected, tmp_path):
    (tmp_path / "hosts").write_text("# a comment\n0.0.0.0 bad.example # why\nmünchen.example\n\n", encoding="utf-8")
    rule = Domains(
        block=("site.example/ads/*", "*/wp-login*"), block_files=(str(tmp_path / "hosts"),), allow=("good.bad.example",)
    )
    assert reason(rule, url=url) == expected


def test_entries_that_would_block_everything_are_refused():
    with pytest.raises(ValidationError, match="fits everything"):
        Domains(block=("*",))
    with pytest.raises(UserError, match=r"domains.block_files: no such file: absent"):
        Domains(block_files=("absent",)).apply(document("x", url="https://a.example"))
    assert reason(Domains(missing="drop")) == "no_url"


def test_owners_opt_out_by_id_url_host_and_hash(tmp_path):
    digest = hashlib.sha256(b"my poem").hexdigest()
    path = tmp_path / "list"
    path.write_text(f"row-7\nhttps://www.site.example/page/\nperson.example\nsha256:{digest}\n", encoding="utf-8")
    rule = OptOut(files=(str(path),))
    assert reason(rule, original_id="row-7") == "opted_out"
    assert reason(rule, original_id="row-70") is None
    assert reason(rule, url="http://site.example/page#top") == "opted_out"
    assert reason(rule, url="http://site.example/page2") is None
    assert reason(rule, url="https://blog.person.example/x") == "host_opted_out"
    assert reason(rule, text="my poem") == "opted_out"
    assert reason(rule, text="my poems") is None


def test_a_hash_must_be_one():
    with pytest.raises(UserError, match="64 hexadecimal"):
        OptOut(entries=("sha256:12",)).apply(document("x"))


def test_noai_is_a_tag_unless_it_is_to_count():
    marked = document("x")
    marked.scores["noai"] = 1.0
    assert OptOut().apply(marked) is None
    assert reason(OptOut(keep_noai=False), scores={"noai": 1.0}) == "noai"
